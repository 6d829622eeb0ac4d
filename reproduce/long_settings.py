"""The plan of `make reproduce-long`: the trainings that the claims of the papers name.

They are in the order of their value: what decides most claims comes first, so that a run that is
stopped early has decided as many as it could.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

RANKS = 4


@dataclass(frozen=True)
class Training:
    """One training; all but the name decides its result."""

    name: str
    spec: str
    model: str = "resnet9"
    epochs: float = 10
    optimizer: str = "sgd"
    seed: int = 1

    @property
    def baseline(self) -> str:
        """The name of the uncompressed training that it is compared with."""
        optimizer = "-adam" if self.optimizer == "adam" else ""
        return f"{self.model}-fp32{optimizer}-{self.seed}"

    def arguments(self) -> list[str]:
        return [
            "--method", self.spec, "--data", "cifar10", "--model", self.model,
            "--ranks", str(RANKS), "--epochs", f"{self.epochs:g}", "--seed", str(self.seed),
            "--optimizer", self.optimizer,
        ]  # fmt: skip


def _resnet9(name: str, spec: str, optimizer: str = "sgd") -> Training:
    return Training(f"resnet9-{name}", spec, optimizer=optimizer)


def _resnet20(name: str, spec: str) -> Training:
    return Training(f"resnet20-{name}", spec, "resnet20", 5, "adam")


def _cifarnet(name: str, spec: str, optimizer: str = "sgd") -> Training:
    return Training(f"cifarnet-{name}", spec, "cifarnet", 5, optimizer)


# Steps of a whole training, for the schedules of fft.
STEPS = 3900

FIRST_SEED = (
    _resnet9("fp32", "fp32"),
    _resnet9("dqsg", "dqsg"),
    # The ratio of bytes sent, fp32 to sketch, with 4 ranks and the elements of resnet9.
    _resnet9("sketch-4x", "sketch:density=0.375"),
    _resnet9("sketch-8x", "sketch:density=0.187"),
    _resnet9("fft", "fft:theta=0.85"),
    _resnet9("gradiveq", "gradiveq"),
    _resnet9("fp32-adam", "fp32", "adam"),
    _resnet9("variance", "variance", "adam"),
    _resnet9("variance-alpha2", "variance:full=0,alpha=2", "adam"),
    _resnet9("variance-alpha3", "variance:full=0,alpha=3", "adam"),
    _resnet9("sketch-paper-4x", "sketch:preset=paper,density=0.0625,min_values=1"),
    _resnet9("sketch-paper-8x", "sketch:preset=paper,density=0.031,min_values=1"),
    _resnet9("fft-0.95", "fft:theta=0.95"),
    _resnet9("topk-0.15", "topk:density=0.15"),
    _resnet9("topk-0.05", "topk:density=0.05"),
    _resnet9("fft-off", "fft:feedback=off"),
    _resnet9("fft-linear", f"fft:feedback=off,schedule=linear,steps={STEPS}"),
    _resnet9("fft-cosine", f"fft:feedback=off,schedule=cosine,steps={STEPS}"),
    _resnet9("fft-step", f"fft:feedback=off,schedule=step,steps={STEPS}"),
    _resnet9("fft-auto", "fft:feedback=off,theta=auto"),
    *(_resnet9(f"dqsg-{m}", f"dqsg:levels={m}") for m in (3, 5, 15, 31)),
    _resnet9("gradiveq-dqsg", "gradiveq:ratio=4+dqsg:levels=15"),
    _resnet9("gradiveq-qsgd", "gradiveq:ratio=4+qsgd"),
    _resnet9("qsgd", "qsgd"),
    _resnet9("variance-hybrid", "variance:full=0,alpha=1,tau=0.01", "adam"),
    _resnet9("variance-strom", "variance:full=0,alpha=0,tau=0.01", "adam"),
    # Narrow layers; full=512 is an eighth of the channel pairs of the widest layer, 64 · 64.
    _resnet20("fp32-adam", "fp32"),
    _resnet20("variance", "variance"),
    _resnet20("variance-full0", "variance:full=0"),
    _resnet20("variance-full512", "variance:full=512"),
    # Defaults that `make reproduce` has not trained since they changed.
    _cifarnet("fp32", "fp32"),
    _cifarnet("topk", "topk"),
    _cifarnet("sketch", "sketch"),
    _cifarnet("qsgd", "qsgd"),
    _cifarnet("powersgd", "powersgd"),
)

# Each seed as a whole after the one before it.
TRAININGS = tuple(
    replace(one, name=f"{one.name}-{seed}", seed=seed) for seed in (1, 2, 3) for one in FIRST_SEED
)
