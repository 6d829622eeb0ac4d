"""The claims of variance-based compression."""

from . import cost_model, narrow, ratio, second_moment

CLAIMS = (ratio.CLAIM, narrow.CLAIM, second_moment.CLAIM, cost_model.CLAIM)
