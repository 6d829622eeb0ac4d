"""Claim: the number of levels trades accuracy for time."""

from __future__ import annotations

from ..claim import Claim
from ..commands import long_training
from ..trained import untrained

CLAIM = Claim(
    name="dqsg-levels",
    system="DQSG",
    claim="the number of levels trades accuracy for training time",
    commands=(long_training("dqsg:levels=M --link 100mbit"),),
    show=untrained("only 3 and 7 levels were trained, on cifarnet", "dqsg", "dqsg-paper"),
)
