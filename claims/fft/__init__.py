"""The claims of FFT sparsification."""

from . import accuracy, diminishing, nodes, tunable

CLAIMS = (accuracy.CLAIM, diminishing.CLAIM, tunable.CLAIM, nodes.CLAIM)
