"""Claim: a very high compression ratio at the baseline's accuracy."""

from __future__ import annotations

from ..claim import Claim
from ..commands import long_training
from ..trained import untrained

MISSING = (
    "variance:full=0,alpha=2",
    "variance:full=0,alpha=3",
    "variance:full=0,alpha=1,tau=0.01",
    "variance:full=0,alpha=0",
)

CLAIM = Claim(
    name="variance-ratio",
    system="Variance",
    claim="CNNs reach the accuracy of the uncompressed baseline at a very high compression ratio",
    commands=(long_training("variance:alpha=A --optimizer adam"),),
    show=untrained(
        "100 times fewer bytes were reached on MNIST only ([variance](methods/variance.md#figures))",
        "variance",
        "variance-paper",
    ),
    missing=tuple(long_training(f"{spec} --optimizer adam") for spec in MISSING),
)
