"""The trainings that all contenders do: the networks, data and optimizers of examples/.

Only ranks import this module: it needs torch.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import torch
import torch.nn.functional as F
from torch import nn

sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "examples"))
import common
import ddp_cifar
import ddp_gpt

Batch = tuple[torch.Tensor, torch.Tensor]


def decayed(module: nn.Module, weight_decay: float) -> list[dict[str, object]]:
    """Returns parameter groups of which only matrices have weight decay."""
    matrices = [one for one in module.parameters() if one.dim() > 1]
    others = [one for one in module.parameters() if one.dim() < 2]
    return [
        {"params": matrices, "weight_decay": weight_decay},
        {"params": others, "weight_decay": 0.0},
    ]


class Workload:
    """A network with its data, on one of `world` ranks."""

    batch: int  # samples per rank and step
    learning_rate: float  # the peak of the schedule
    weight_decay: float

    def __init__(self, seed: int, rank: int, world: int) -> None:
        self.rank, self.world = rank, world
        torch.manual_seed(seed)
        self.random = torch.Generator().manual_seed(1000 * seed + rank)

    def module(self) -> nn.Module:
        raise NotImplementedError

    def optimizer(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        raise NotImplementedError

    def groups(self, module: nn.Module) -> list[dict[str, object]]:
        return decayed(module, self.weight_decay)

    def schedule(
        self, optimizer: torch.optim.Optimizer, steps: int
    ) -> torch.optim.lr_scheduler.LRScheduler:
        return torch.optim.lr_scheduler.OneCycleLR(
            optimizer, self.learning_rate, total_steps=steps, pct_start=0.25, cycle_momentum=False
        )

    def next_batch(self) -> Batch:
        raise NotImplementedError

    def held_out(self) -> Iterator[Batch]:
        """Yields this rank's part of the data that no rank trains with."""
        raise NotImplementedError

    def loss(self, model: nn.Module, batch: Batch, smooth: float = 0) -> torch.Tensor:
        inputs, labels = batch
        scores = model(inputs).flatten(0, -2)
        return F.cross_entropy(scores, labels.flatten(), label_smoothing=smooth)

    def training_loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return self.loss(model, batch)


class Gpt(Workload):
    """Characters of a novel; the loss is in nats per character."""

    batch, learning_rate, weight_decay = 12, 2e-3, 0.01
    test_windows = 256

    def __init__(self, seed: int, rank: int, world: int) -> None:
        super().__init__(seed, rank, world)
        text, self.alphabet = common.moby_dick()
        tenth = len(text) // 10
        self.training, self.test = text[:-tenth], text[-tenth:]

    def module(self) -> nn.Module:
        return ddp_gpt.Gpt(self.alphabet)

    def optimizer(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.AdamW(groups, lr=self.learning_rate)

    def windows(self, text: torch.Tensor, starts: torch.Tensor) -> Batch:
        rows = torch.stack([text[at : at + ddp_gpt.CONTEXT + 1] for at in starts.tolist()])
        return rows[:, :-1], rows[:, 1:]

    def next_batch(self) -> Batch:
        last = len(self.training) - ddp_gpt.CONTEXT
        return self.windows(
            self.training, torch.randint(last, (self.batch,), generator=self.random)
        )

    def held_out(self) -> Iterator[Batch]:
        # Windows from all over the last tenth of the text.
        apart = (len(self.test) - ddp_gpt.CONTEXT - 1) // self.test_windows
        starts = torch.arange(self.rank, self.test_windows, self.world) * apart
        return (self.windows(self.test, part) for part in starts.split(16))


class ResNet(Workload):
    """CIFAR-10; the loss is that of the held-out images, without the smoothing of the training."""

    batch, learning_rate, weight_decay = 32, 0.2, 5e-4
    test_images = 2000

    def __init__(self, seed: int, rank: int, world: int) -> None:
        super().__init__(seed, rank, world)
        self.images, self.labels, self.test, self.test_labels = ddp_cifar.load(50_000)

    def module(self) -> nn.Module:
        return ddp_cifar.ResNet9()

    def optimizer(self, groups: list[dict[str, object]]) -> torch.optim.Optimizer:
        return torch.optim.SGD(groups, lr=self.learning_rate, momentum=0.9)

    def next_batch(self) -> Batch:
        mine = torch.randint(len(self.images), (self.batch,), generator=self.random)
        return ddp_cifar.scale(ddp_cifar.augment(self.images[mine], self.random)), self.labels[mine]

    def training_loss(self, model: nn.Module, batch: Batch) -> torch.Tensor:
        return self.loss(model, batch, smooth=0.1)

    def held_out(self) -> Iterator[Batch]:
        for part in torch.arange(self.rank, self.test_images, self.world).split(250):
            yield ddp_cifar.scale(self.test[part]), self.test_labels[part]


WORKLOADS: dict[str, type[Workload]] = {"gpt": Gpt, "resnet": ResNet}


if __name__ == "__main__":
    # Downloads the data: the namespaces of the ranks have no way out.
    for workload in sys.argv[1:]:
        WORKLOADS[workload](seed=1, rank=0, world=1)
