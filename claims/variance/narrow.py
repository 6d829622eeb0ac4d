"""Claim: works where layers are narrow."""

from __future__ import annotations

from ..claim import Claim
from ..trained import untrained

CLAIM = Claim(
    name="variance-narrow",
    system="Variance",
    claim="the method works for networks whose layers are narrow",
    commands=(
        "thinreduce train --model resnet20 --ranks 4 --epochs 5 --optimizer adam --method variance",
    ),
    show=untrained(
        "such a network needs its own value of the option `full` "
        "([variance](methods/variance.md#how-a-step-works)); none was trained with it"
    ),
)
