"""The claims of Sketched-SGD."""

from . import accuracy, ranks, topk_distance

CLAIMS = (accuracy.CLAIM, ranks.CLAIM, topk_distance.CLAIM)
