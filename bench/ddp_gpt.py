#!/usr/bin/env python3
"""Times training steps of a small GPT under DDP over a slow link, per method.

    bench/ddp_gpt.py --link 100mbit,15ms --method fp32 --method qsgd

The model predicts characters: 4 layers, 4 heads, 128 wide, context 64, batch 12 per rank, AdamW;
0.8 M parameters, 3.2 MB of gradient. The text is README.md and docs/ of this repository.
All ranks run on this machine, so with fewer cores than ranks the computation takes longer than on
machines of their own; `compute` is a step of all ranks at once without an exchange. The times are
medians over the steps of the slowest rank, and the smallest in parentheses.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from pathlib import Path

METHODS = ["fp32", "bf16", "powersgd", "dqsg", "ndqsg", "gradiveq", "fft", "qsgd", "topk", "sketch"]
LAYERS, HEADS, WIDTH, CONTEXT, BATCH = 4, 4, 128, 64, 12
ROOT = Path(__file__).resolve().parent.parent


def read_text() -> str:
    pages = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
    return "".join(page.read_text() for page in pages)


def run_rank(args: argparse.Namespace) -> None:
    import torch
    import torch.distributed as dist
    from torch import nn
    from torch.nn.parallel import DistributedDataParallel

    import thinreduce

    class Gpt(nn.Module):
        def __init__(self, characters: int) -> None:
            super().__init__()
            self.tokens = nn.Embedding(characters, WIDTH)
            self.places = nn.Embedding(CONTEXT, WIDTH)
            layer = nn.TransformerEncoderLayer(
                WIDTH, HEADS, 4 * WIDTH, 0.0, "gelu", batch_first=True, norm_first=True
            )
            self.layers = nn.TransformerEncoder(layer, LAYERS, nn.LayerNorm(WIDTH))
            self.head = nn.Linear(WIDTH, characters, bias=False)
            self.register_buffer("mask", torch.full((CONTEXT, CONTEXT), -1e9).triu(1))

        def forward(self, text: torch.Tensor) -> torch.Tensor:
            inputs = self.tokens(text) + self.places.weight
            return self.head(self.layers(inputs, self.mask))

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    text = read_text()
    alphabet = {character: i for i, character in enumerate(sorted(set(text)))}
    data = torch.tensor([alphabet[character] for character in text])

    def train(method: str) -> None:
        torch.manual_seed(0)
        model = DistributedDataParallel(Gpt(len(alphabet)))
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        state = None
        if method != "compute":
            state = thinreduce.State(method, model=model, link=args.link, momentum_inside_ok=True)
            model.register_comm_hook(state, thinreduce.hook)
        batches = torch.Generator().manual_seed(dist.get_rank())

        def step() -> float:
            starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=batches)
            rows = torch.stack([data[at : at + CONTEXT + 1] for at in starts.tolist()])
            dist.barrier()
            started = time.monotonic()
            with model.no_sync() if state is None else contextlib.nullcontext():
                scores = model(rows[:, :-1])
                loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
                optimizer.zero_grad()
                loss.backward()
            optimizer.step()
            taken = torch.tensor([time.monotonic() - started])
            dist.all_reduce(taken, dist.ReduceOp.MAX)
            return 1e3 * taken.item()

        for _ in range(args.warmup):
            step()
        times = [step() for _ in range(args.steps)]
        if dist.get_rank() == 0:
            sent = state.stats()["bytes_sent"] if state else 0  # in the last step
            report = {"method": method, "median": statistics.median(times), "min": min(times)}
            print(json.dumps({**report, "sent": sent}), flush=True)
        dist.barrier()
        if state is not None:
            state.close()

    for method in ["compute", *args.method]:
        train(method)
    dist.destroy_process_group()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=4)
    parser.add_argument("--link", default="100mbit,15ms", help="link that thinreduce simulates")
    parser.add_argument("--steps", type=int, default=20)
    # gradiveq learns its bases from the first steps, which travel uncompressed.
    parser.add_argument("--warmup", type=int, default=15, help="steps that are not timed")
    parser.add_argument("--method", action="append", help=f"default: {' '.join(METHODS)}")
    parser.add_argument("--inside", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    args.method = args.method or METHODS
    if args.inside:
        run_rank(args)
        return
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environment = {
        **os.environ,
        "WORLD_SIZE": str(args.ranks),
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
        "OMP_NUM_THREADS": "1",
    }
    command = [sys.executable, str(Path(__file__).resolve()), "--inside", "--link", args.link]
    command += ["--steps", str(args.steps), "--warmup", str(args.warmup)]
    for method in args.method:
        command += ["--method", method]
    ranks = [
        subprocess.Popen(
            command,
            env={**environment, "RANK": str(rank)},
            stdout=subprocess.PIPE if rank == 0 else None,
            text=True,
        )
        for rank in range(args.ranks)
    ]
    print(f"{args.ranks} ranks, link {args.link}; ms per step, and bytes sent per step and rank")
    assert ranks[0].stdout is not None
    for line in ranks[0].stdout:
        one = json.loads(line)
        print(f"{one['method']:28} {one['median']:6.0f} ({one['min']:.0f})  {one['sent']:10,.0f}")
    sys.exit(max(rank.wait() for rank in ranks))


if __name__ == "__main__":
    main()
