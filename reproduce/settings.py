"""The plan of `make reproduce`: one network, one training, and each method with its options.

Most methods run twice: with the setting of their paper and with the defaults.
"""

from __future__ import annotations

from dataclasses import dataclass

# The network of the paper on nested dithered quantization: two convolutions and three linear layers.
# Four ranks on two cores train it in minutes, and it has both kinds of layers, so that no method is
# tried only on the kind that suits it.
MODEL = "cifarnet"
PARAMETERS = 1_068_298
DATA = "cifar10"
RANKS = 4
EPOCHS = 5
SEED = 1
EVALUATE_EVERY = 100  # steps
LINKS = ("100mbit", "1gbit")


@dataclass(frozen=True)
class Setting:
    """One training: a method with options, and an optimizer."""

    name: str  # also the name of its run folder
    spec: str
    # "paper": the setting of the paper. "default": the defaults. "both": they are the same.
    # "ours": options chosen for this comparison.
    kind: str
    optimizer: str = "sgd"
    note: str = ""

    @property
    def method(self) -> str:
        return self.spec.split(":")[0]

    @property
    def baseline(self) -> str:
        """The name of the uncompressed run that it is compared with."""
        return "fp32-adam" if self.optimizer == "adam" else "fp32"


# fmt: off
SETTINGS = (
    Setting("fp32", "fp32", "both"),
    Setting("fp32-adam", "fp32", "both", "adam", "the reference of variance"),
    Setting("fft", "fft", "default", note="θ=0.85, 10 bits, blocks of 64, error feedback"),
    Setting("dqsg", "dqsg", "default", note="7 symbols, codes add in the ring"),
    Setting("ndqsg", "ndqsg", "default", note="levels (3, 1), half of the ranks nested where that saves bytes"),
    Setting("variance", "variance", "default", "adam", "α=1.5, smaller for narrow tensors; rounding errors are kept"),
    Setting("sketch", "sketch", "default", note="the ranks nominate most of the candidates"),
    Setting("gradiveq", "gradiveq", "default", note="an eighth of the floats of a layer, running samples, error feedback"),
    Setting("gradiveq-8x", "gradiveq:ratio=8.4", "ours", note="8x with biases, bases and uncompressed steps counted"),
    Setting("powersgd", "powersgd", "default", note="basis size 8"),
    Setting("topk", "topk", "default", note="10 % of the values, error feedback"),
    Setting("bf16", "bf16", "both"),
    Setting("qsgd", "qsgd", "default", note="6 bits"),
    Setting("terngrad", "terngrad", "both", note="one scale per layer, clipped at 2.5 σ"),
    Setting("fft-paper", "fft:preset=paper", "paper", note="θ=0.85, 10 bits, long blocks, no feedback"),
    Setting("dqsg-paper", "dqsg:preset=paper", "paper", note="3 symbols, one scale per layer, every payload to every rank"),
    Setting("ndqsg-paper", "ndqsg:preset=paper", "paper", note="one scale per layer, half of the ranks nested in all of their codes"),
    Setting("variance-paper", "variance:preset=paper", "paper", "adam", "α=1.5, 32-bit words"),
    Setting("topk-paper", "topk:preset=paper", "paper", note="1 % of the values, error feedback"),
    Setting("qsgd-paper", "qsgd:preset=paper", "paper", note="4 bits, 512 elements per norm"),
    Setting("sketch-paper", "sketch:preset=paper", "paper", note="all candidates from the sketch, momentum inside"),
    Setting(
        "gradiveq-paper",
        "gradiveq:preset=paper,warmup=200",
        "paper",
        note="99 % of the energy, 100 of 500 steps uncompressed; warm-up 200 steps, 2,500 in the paper",
    ),
)

# Error against size: each method over a range of options. Feedback is off where it can be, because an
# error that is corrected in the next step would count as an error here.
RATE_DISTORTION = {
    "bf16": ["bf16"],
    "topk": [f"topk:feedback=off,density={d}" for d in (0.001, 0.003, 0.01, 0.03, 0.1, 0.3)],
    "gradiveq": [f"gradiveq:feedback=off,ratio={r}" for r in (2, 4, 8, 16, 32, 64)],
    "gradiveq+dqsg": [
        f"gradiveq:feedback=off,ratio={r}+dqsg:levels={m}" for r, m in ((2, 31), (4, 15), (8, 15), (16, 15))
    ],
    "fft": [f"fft:feedback=off,theta={t},bits={b}" for t, b in ((0.5, 12), (0.7, 10), (0.85, 10), (0.95, 8), (0.99, 8))],
    "dqsg": [f"dqsg:collective=gather,levels={m}" for m in (3, 7, 15, 31, 63)],
    "ndqsg": [f"ndqsg:levels={a},nested={b}" for a, b in ((3, 1), (9, 3), (15, 5), (31, 1))],
    "qsgd": [f"qsgd:bits={b}" for b in (2, 3, 4, 6, 8)],
    "terngrad": ["terngrad:block=512", "terngrad"],
    "sketch": [f"sketch:density={d}" for d in (0.02, 0.06, 0.2)],
    "variance": [f"variance:full=0,alpha={a}" for a in (1, 1.5, 2, 3)],
    "powersgd": [f"powersgd:basis={r}" for r in (1, 2, 4, 8, 16, 32)],
}
KEEPS_RESIDUAL = ("sketch", "variance", "powersgd")  # feedback is part of the method

SCALING_RANKS = (2, 4, 8, 16)
SCALING_FLOATS = 4_000_000
SCALING_LINK = "1gbit"
SCALING_METHODS = (
    "fp32", "bf16", "gradiveq", "fft", "variance", "dqsg", "ndqsg", "sketch", "topk", "qsgd", "terngrad", "powersgd",
)
# fmt: on
