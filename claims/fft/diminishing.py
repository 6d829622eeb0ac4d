"""Claim: training converges when the compression ratio shrinks over time."""

from __future__ import annotations

from ..claim import Claim
from ..commands import long_training
from ..trained import untrained

CLAIM = Claim(
    name="fft-diminishing",
    system="FFT",
    claim="training converges when the fraction θ that is dropped shrinks over time",
    commands=(long_training("fft:feedback=off,schedule=linear,steps=3900"),),
    show=untrained("no schedule of θ was trained"),
    missing=tuple(
        long_training(f"fft:feedback=off{options}")
        for options in (
            "",
            ",theta=auto",
            ",schedule=cosine,steps=3900",
            ",schedule=step,steps=3900",
        )
    ),
)
