"""The claims of dithered and nested dithered quantization."""

from . import levels, nesting, noise

CLAIMS = (noise.CLAIM, levels.CLAIM, nesting.CLAIM)
