#!/usr/bin/env python3
"""Trains on while ranks are killed: the others go on after the last completed step.

    python examples/ddp_elastic.py --ranks 3 --kill-at 20

starts three processes, of which one kills itself at step 20 and is replaced; `kill -9` of any of
them does the same. torchrun can't start them, because it ends all ranks when one fails. Here the
first process is the launcher: it holds the store in which ranks ask for a place in a new world, and
answers when all that are alive have asked.
"""

from __future__ import annotations

import argparse
import datetime
import hashlib
import os
import signal
import subprocess
import sys
import time

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import thinreduce

LONG = datetime.timedelta(days=1)


def launch(args: argparse.Namespace) -> None:
    store = dist.TCPStore("127.0.0.1", 0, None, True, wait_for_workers=False)
    running: dict[int, subprocess.Popen[bytes]] = {}
    answered: dict[int, int] = {}  # places that each process has got

    def start() -> None:
        number = len(answered)
        command = [sys.executable, *sys.argv, "--port", str(store.port), "--number", str(number)]
        running[number] = subprocess.Popen(command)
        answered[number] = 0

    for _ in range(args.ranks):
        start()
    worlds = 0
    while running:
        time.sleep(0.02)
        for number, process in list(running.items()):
            if process.poll() is None:
                continue
            del running[number]
            if process.returncode > 0:
                sys.exit(f"process {number} failed")
            if process.returncode < 0 and running:
                print(f"process {number} was killed; a new one takes its place", flush=True)
                start()
        if all(store.add(f"asked/{number}", 0) > answered[number] for number in running):
            # Those who were there before come first: DDP takes the parameters of rank 0.
            worlds += 1
            for rank, number in enumerate(sorted(running, key=lambda one: answered[one] == 0)):
                answered[number] += 1
                store.set(f"place/{number}/{answered[number]}", f"{rank} {len(running)} {worlds}")


class Rank:
    """A process of the training."""

    def __init__(self, args: argparse.Namespace) -> None:
        self.number = args.number
        self.store = dist.TCPStore("127.0.0.1", args.port, None, False, timeout=LONG)
        torch.manual_seed(1)
        layers = torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10)
        self.net = torch.nn.Sequential(*layers)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.state = thinreduce.State(args.method, model=self.net, warmup_steps=args.warmup_steps)
        self.asked = 0
        self.meet()
        change = self.state.reconfigure()
        self.step = change.steps  # in the first world: 0
        self.share_parameters(change)

    def meet(self) -> None:
        """Forms a new world with all ranks that are alive."""
        self.model = None  # the old one, with its hooks
        if dist.is_initialized():
            dist.destroy_process_group()
        self.asked = self.store.add(f"asked/{self.number}", 1)
        place = self.store.get(f"place/{self.number}/{self.asked}").decode()
        self.rank, world, number = map(int, place.split())
        store = dist.PrefixStore(f"world{number}", self.store)
        dist.init_process_group("gloo", store=store, rank=self.rank, world_size=world)
        self.model = DistributedDataParallel(self.net)
        self.model.register_comm_hook(self.state, thinreduce.hook)

    def share_parameters(self, change: thinreduce.Reconfiguration) -> None:
        """Gives ranks that have joined the parameters after the optimizer's last step: those that
        DDP has sent may be from before it."""
        if change.joined:
            for one in self.net.parameters():
                dist.broadcast(one.data, change.source)

    def one_step(self) -> None:
        generator = torch.Generator().manual_seed(1000 * self.step + self.rank)
        labels = torch.randint(0, 10, (16,), generator=generator)
        images = torch.randn(16, 256, generator=generator) + labels.view(-1, 1) / 3
        self.optimizer.zero_grad()
        change = None
        try:
            with self.state.errors():
                F.cross_entropy(self.model(images), labels).backward()
                self.state.commit()
        except (thinreduce.LostPeer, thinreduce.Timeout):
            self.meet()
            change = self.state.reconfigure()
            if self.rank == 0:
                print(change.text, flush=True)
        if change is None or not change.repeat:
            self.optimizer.step()
            self.step += 1
        if change is not None:
            self.share_parameters(change)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="topk:density=0.05")
    parser.add_argument("--ranks", type=int, default=3)
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--warmup-steps", type=int, default=1, help="uncompressed, at the start")
    parser.add_argument("--kill-at", type=int, default=0, help="step at which process 1 ends")
    parser.add_argument("--port", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--number", type=int, help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.port is None:
        launch(args)
        return
    torch.set_num_threads(1)
    rank = Rank(args)
    while rank.step < args.steps:
        if rank.number == 1 and rank.step == args.kill_at > 0:
            os.kill(os.getpid(), signal.SIGKILL)
        rank.one_step()
    weights = torch.cat([one.detach().flatten() for one in rank.net.parameters()])
    digest = hashlib.sha256(weights.numpy().tobytes()).hexdigest()[:16]
    print(f"rank {rank.rank}: weights {digest} after step {rank.step}", flush=True)
    rank.state.close()


if __name__ == "__main__":
    main()
