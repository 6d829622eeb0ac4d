"""The contenders, links and parts of `make peers`."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

RANKS = 4
BUSY = 0.25  # cores of other programs above which a time is too long
SEEDS = (1, 2, 3)
STEPS = 200  # per training; two idle cores should train one contender in about a minute
TARGET_AT = 0.8  # fraction of DDP's training whose loss is the target
EVALUATE_EVERY = 20
# Timed steps after untimed ones. Where the exchange takes most of a step, times differ less.
WARMUP, TIMED, TIMED_THIN = 10, 30, 12
THIN = ("100mbit", "20mbit")
LOCAL = 30  # local steps per round
LOCAL_STEPS = 2 * STEPS // LOCAL * LOCAL

# Names on the page, and rates for tc; without one the ranks share a loopback interface.
LINKS = {"1gbit": "1gbit", "100mbit": "100mbit", "20mbit": "20mbit", "loopback": ""}
WORKLOADS = {
    "gpt": "a GPT of 0.8 M parameters on Moby-Dick: 4 layers, 4 heads, 128 wide, context 64, batch 12 per rank, AdamW",
    "resnet": "a residual network of 0.8 M parameters on CIFAR-10, batch 32 per rank, SGD with momentum",
}

TORCH, PEER, OURS = "torch", "peers", "thinreduce"


@dataclass(frozen=True)
class Contender:
    name: str
    group: str
    adapter: str  # a module of peers.adapters
    options: dict[str, Any] = field(default_factory=dict)
    note: str = ""
    package: str = ""  # on PyPI
    local: bool = False  # exchanges every few steps
    follows_link: bool = False  # its training depends on the link

    @property
    def steps(self) -> int:
        """Steps of a training: local steps need more of them, in whole rounds; the page says so."""
        return LOCAL_STEPS if self.local else STEPS

    @property
    def evaluate_every(self) -> int:
        """Steps between evaluations; local steps are evaluated right after an exchange."""
        return LOCAL if self.local else EVALUATE_EVERY


def ours(spec: str, note: str = "", *, follows_link: bool = False) -> Contender:
    options = {"spec": spec}
    return Contender(f"thinreduce {spec}", OURS, "ours", options, note, follows_link=follows_link)


def ours_local(name: str, note: str, **arguments: Any) -> Contender:
    options = {"arguments": arguments}
    return Contender(f"thinreduce {name}", OURS, "ours_local", options, note, local=True)


def hook(name: str, hook: str, note: str, **options: Any) -> Contender:
    return Contender(name, TORCH, "torch_hooks", {"hook": hook, **options}, note)


def diloco(kind: str) -> Contender:
    return Contender(
        f"DiLoCo {kind}", PEER, "diloco", {"int8": kind == "int8", "every": LOCAL},
        f"our adapter on torch.distributed, {LOCAL} local steps, outer Nesterov 0.7, 0.9", local=True,
    )  # fmt: skip


COMPUTE = Contender(
    "no exchange", "", "alone", note="a step that only computes, on all ranks at once"
)
DDP = hook("DDP", "", "torch's default: fp32, overlapped with backward")
BF16 = hook("DDP bf16", "bf16", "`bf16_compress_hook`, overlapped with backward: the baseline")
# In the order in which they are trained: a run that is stopped has the most telling ones.
CONTENDERS = (
    DDP,
    BF16,
    ours("dqsg:levels=15", "recommended for a transformer with AdamW"),
    hook("DDP PowerSGD 4", "powersgd", "`powerSGD_hook`, matrix rank 4, from step 10, in one bucket", rank=4),
    ours_local("local dqsg", f"`LocalSteps`, {LOCAL} local steps, the default outer step", spec="dqsg", every=LOCAL),
    diloco("int8"),
    ours("auto", "chooses per bucket, by link and gradients", follows_link=True),
    ours("dqsg"),
    ours("qsgd"),
    Contender(
        "hivemind", PEER, "hivemind", {"every": LOCAL},
        f"`DecentralizedAverager` of parameters in 8 bits, {LOCAL} local steps", "hivemind", local=True,
    ),
    Contender(
        "DeepSpeed 1-bit Adam", PEER, "deepspeed",
        {"onebit": {"freeze_step": 60, "comm_backend_name": "compressed"}},
        "`OneBitAdam`, compressed after 60 steps", "deepspeed",
    ),
    hook("DDP fp16", "fp16", "`fp16_compress_hook`"),
    hook("DDP PowerSGD 1", "powersgd", "`powerSGD_hook`, matrix rank 1, from step 10, in one bucket", rank=1),
    ours("bf16"),
    ours("fft"),
    ours("ndqsg"),
    ours("powersgd"),
    ours_local("local dqsg, 10 steps", "`LocalSteps`, 10 local steps, outer SGD", spec="dqsg", every=10, outer="sgd,lr=1"),
    diloco("fp32"),
    ours("variance", "with its second moment"),
    ours("topk"),
    ours("fp32"),
    ours("gradiveq"),
    ours("terngrad"),
    ours("sketch"),
)  # fmt: skip
# Overlapped bf16: the second one if torch's hook does not run.
BASELINES = (BF16.name, "thinreduce bf16")
GROUPS = (TORCH, PEER, OURS)
BY_NAME = {one.name: one for one in (COMPUTE, *CONTENDERS)}


@dataclass(frozen=True)
class Part:
    """One measurement, with a name by which its result is kept."""

    workload: str
    contender: Contender
    link: str = ""
    seed: int = 0  # 0: the steps are timed

    @property
    def name(self) -> str:
        kind = f"seed {self.seed}" if self.seed else "time"
        return ", ".join(
            [self.workload, self.contender.name, *([self.link] if self.link else []), kind]
        )

    @property
    def asked(self) -> dict[str, Any]:
        """Returns the request: a result of another request is not used."""
        one = self.contender
        asked = {
            "workload": self.workload, "adapter": one.adapter, "options": one.options, "seed": self.seed or 1,
        }  # fmt: skip
        if self.seed:
            return {**asked, "steps": one.steps, "evaluate_every": one.evaluate_every}
        # A round of local steps must be timed as a whole.
        timed = TIMED_THIN if self.link in THIN and not one.local else TIMED
        # The trials of a contender that follows the link come at the start, and get rare.
        warmup = 3 * WARMUP if one.follows_link else WARMUP
        return {**asked, "steps": warmup + timed, "warmup": warmup, "timed": timed}


def parts(
    contenders: tuple[Contender, ...] = CONTENDERS,
    links: tuple[str, ...] = tuple(LINKS),
    seeds: tuple[int, ...] = SEEDS,
    workloads: tuple[str, ...] = tuple(WORKLOADS),
) -> Iterator[Part]:
    """Yields the selected measurements: all trainings of a seed, the next seed, then the links."""
    for workload in workloads:
        for seed in seeds:
            for one in contenders:
                for link in links if one.follows_link else ("",):
                    yield Part(workload, one, link, seed)
        for link in links:
            for one in (COMPUTE, *contenders) if link == "loopback" else contenders:
                yield Part(workload, one, link)
