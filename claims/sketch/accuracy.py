"""Claim: no drop of accuracy at 4 times fewer bytes, about 1 point at 8 times fewer."""

from __future__ import annotations

from ..claim import Claim
from ..commands import long_training
from ..trained import untrained

CLAIM = Claim(
    name="sketch-accuracy",
    system="Sketched-SGD",
    claim="a residual network on CIFAR-10 loses no accuracy at 4 times fewer bytes and about 1 point at 8 times fewer",
    commands=(long_training("sketch:density=D"),),
    show=untrained("the residual network was not trained", "sketch-10x", "sketch", "sketch-paper"),
    missing=(long_training("sketch:preset=paper,density=D"),),
)
