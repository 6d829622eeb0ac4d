"""The trainings, links and commands that several claims share."""

from __future__ import annotations

# Arguments of the trainings whose gradients are recorded.
RESNET9 = "--model resnet9 --ranks 4 --steps 200 --save-every 4"
RESNET9_EVERY_STEP = "--model resnet9 --ranks 4 --steps 60 --save-every 1"
VGG = "--model vgg-small --ranks 4 --batch 16 --steps 120 --save-every 4"

# As the authors of NDQSG trained: plain gradient descent, a batch of 200 for all ranks together.
AUTHORS = "--model fc-300-100 --optimizer sgd --momentum 0 --learning-rate 0.01 --schedule constant"

GBIT, SLOW = "1gbit,0.1ms", "100mbit,1ms"
LINKS = {GBIT: (1e9, 1e-4), SLOW: (1e8, 1e-3)}  # bits per second, seconds of latency

# As the page prints them.
ON_RECORDED = "thinreduce bench codec --gradients DIR --method SPEC"


def recorded(arguments: str) -> str:
    """Returns the command that records gradients."""
    return f"thinreduce train {arguments} --save-gradients DIR"


def virtual(floats: int, rest: str) -> str:
    """Returns the command that measures a reduce in the virtual cluster."""
    cluster = "thinreduce bench reduce --simulate LINK --ranks N --shapes resnet50"
    return f"{cluster} --floats {floats} {rest}"


def long_training(spec: str) -> str:
    """Returns the command that trains the residual network."""
    return f"thinreduce train --model resnet9 --ranks 4 --epochs 10 --seed SEED --method {spec}"
