"""No exchange: the time that a step computes."""

from . import Trainer

__all__ = ["Trainer"]
