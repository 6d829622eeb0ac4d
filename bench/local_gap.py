#!/usr/bin/env python3
"""Trains a small GPT with local steps in plain PyTorch, without thinreduce's engine.

    PYTHONPATH=build/release/python /usr/bin/python3 bench/local_gap.py sync local local:every=1

It is an independent implementation of what `thinreduce train --local-steps` computes, so a gap to
synchronous training that both show is no defect of the engine. All ranks are simulated in one
process, with a smaller GPT, so a run takes less than a minute of one core. Each run is `sync` or
`local` with settings of Run, for example `local:every=10,batch=24`.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import sys
from pathlib import Path

import torch

sys.path.insert(0, str(Path(__file__).parents[1] / "examples"))
import common
import ddp_gpt

LAYERS, HEADS, WIDTH, CONTEXT = 2, 2, 64, 32
TEST_WINDOWS = 200


@dataclasses.dataclass
class Run:
    ranks: int = 4
    steps: int = 300
    batch: int = 6  # windows per rank and step
    lr: float = 2e-3  # peak of a one-cycle schedule
    every: int = 30  # H
    outer_lr: float = 1.0  # 1 without momentum: the mean of the ranks' parameters
    momentum: float = 0.0  # of Nesterov's outer step
    start: int = 0  # synchronous steps before the first round
    average_moments: int = 0  # 1: each round also averages the moments of AdamW
    seed: int = 1


def rate_of(run: Run, step: int) -> float:
    def glide(first: float, last: float, part: float) -> float:
        return last + (first - last) * (1 + math.cos(math.pi * part)) / 2

    part = step / run.steps
    if part < 0.25:
        return glide(run.lr / 25, run.lr, part / 0.25)
    return glide(run.lr, run.lr / 1e4, (part - 0.25) / 0.75)


class Rank:
    """A model, its optimizer and its stream of windows."""

    def __init__(self, run: Run, model: torch.nn.Module, state: dict | None = None) -> None:
        self.run, self.model = run, model
        matrices = [p for p in model.parameters() if p.dim() > 1]
        vectors = [p for p in model.parameters() if p.dim() <= 1]
        groups = [
            {"params": matrices, "weight_decay": 0.01},
            {"params": vectors, "weight_decay": 0.0},
        ]
        self.optimizer = torch.optim.AdamW(groups, lr=run.lr)
        if state is not None:
            self.optimizer.load_state_dict(copy.deepcopy(state))

    def step(self, text: torch.Tensor, starts: torch.Tensor, step: int) -> None:
        for group in self.optimizer.param_groups:
            group["lr"] = rate_of(self.run, step)
        self.optimizer.zero_grad()
        ddp_gpt.loss_of(self.model, text, starts).backward()
        self.optimizer.step()


class OuterStep:
    """Moves the parameters that all ranks share, and gives them to all."""

    def __init__(self, run: Run, model: torch.nn.Module) -> None:
        self.run = run
        self.anchor = [p.detach().clone() for p in model.parameters()]
        self.velocity = [torch.zeros_like(p) for p in self.anchor]

    @torch.no_grad()
    def apply(self, ranks: list[Rank]) -> None:
        for parts in zip(self.anchor, self.velocity, *(r.model.parameters() for r in ranks)):
            anchor, velocity, own = parts[0], parts[1], parts[2:]
            mean = anchor - sum(own) / len(own)
            velocity.mul_(self.run.momentum).add_(mean)
            anchor.sub_(self.run.outer_lr * (mean + self.run.momentum * velocity))
            for parameter in own:
                parameter.copy_(anchor)
        if self.run.average_moments:
            states = [[r.optimizer.state[p] for p in r.model.parameters()] for r in ranks]
            for of_parameter in zip(*states):
                for name in ("exp_avg", "exp_avg_sq"):
                    mean = sum(state[name] for state in of_parameter) / len(ranks)
                    for state in of_parameter:
                        state[name].copy_(mean)


def evaluate(model: torch.nn.Module, text: torch.Tensor) -> float:
    starts = torch.arange(TEST_WINDOWS) * ((len(text) - CONTEXT - 1) // TEST_WINDOWS)
    with torch.no_grad():
        losses = [ddp_gpt.loss_of(model, text, part).item() for part in starts.split(50)]
    return sum(losses) / len(losses)


def train(run: Run, synchronous: bool, texts: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Returns the test loss in nats per character."""
    text, test = texts
    torch.manual_seed(run.seed)
    model = ddp_gpt.Gpt(int(torch.cat(texts).max()) + 1)
    streams = [torch.Generator().manual_seed(1000 * run.seed + r) for r in range(run.ranks)]

    def starts_of(rank: int) -> torch.Tensor:
        return torch.randint(0, len(text) - CONTEXT - 1, (run.batch,), generator=streams[rank])

    shared = Rank(run, model)
    local_from = run.steps if synchronous else run.start
    for step in range(local_from):
        shared.step(text, torch.cat([starts_of(r) for r in range(run.ranks)]), step)
    if synchronous:
        return evaluate(model, test)
    state = shared.optimizer.state_dict() if run.start else None
    ranks = [Rank(run, copy.deepcopy(model), state) for _ in range(run.ranks)]
    outer = OuterStep(run, model)
    for step in range(local_from, run.steps):
        for number, rank in enumerate(ranks):
            rank.step(text, starts_of(number), step)
        if (step + 1 - local_from) % run.every == 0 or step + 1 == run.steps:
            outer.apply(ranks)
    return evaluate(ranks[0].model, test)


def load_text() -> tuple[torch.Tensor, torch.Tensor]:
    """Returns training and test characters as numbers."""
    raw = (common.data_folder("text") / "data.txt").read_text(encoding="utf-8", errors="replace")
    numbers = {char: number for number, char in enumerate(sorted(set(raw)))}
    text = torch.tensor([numbers[char] for char in raw])
    cut = len(text) * 9 // 10
    return text[:cut], text[cut:]


def parse(word: str) -> tuple[Run, bool]:
    kind, _, settings = word.partition(":")
    if kind not in ("sync", "local"):
        sys.exit(f"local_gap: '{word}' must begin with sync or local")
    run = Run()
    for setting in filter(None, settings.split(",")):
        name, _, value = setting.partition("=")
        if not hasattr(run, name):
            sys.exit(f"local_gap: there is no setting '{name}'; they are {vars(run)}")
        setattr(run, name, type(getattr(run, name))(float(value)))
    return run, kind == "sync"


def main() -> None:
    torch.set_num_threads(1)
    ddp_gpt.LAYERS, ddp_gpt.HEADS, ddp_gpt.WIDTH, ddp_gpt.CONTEXT = LAYERS, HEADS, WIDTH, CONTEXT
    texts = load_text()
    for word in sys.argv[1:] or ["sync", "local"]:
        print(f"{word} {train(*parse(word), texts):.4f}", flush=True)


if __name__ == "__main__":
    main()
