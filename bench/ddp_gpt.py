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
import statistics
from pathlib import Path

from local_ranks import parse, reports, time_on_all

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
            self.layers = nn.TransformerEncoder(
                layer, LAYERS, nn.LayerNorm(WIDTH), enable_nested_tensor=False
            )
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
        model = DistributedDataParallel(Gpt(len(alphabet)), bucket_cap_mb=args.bucket_mb)
        optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
        state = None
        if method != "compute":
            state = thinreduce.State(method, model=model, link=args.link, momentum_inside_ok=True)
            model.register_comm_hook(state, thinreduce.hook)
        batches = torch.Generator().manual_seed(dist.get_rank())

        def step() -> float:
            starts = torch.randint(len(data) - CONTEXT - 1, (BATCH,), generator=batches)
            rows = torch.stack([data[at : at + CONTEXT + 1] for at in starts.tolist()])

            def work() -> None:
                with model.no_sync() if state is None else contextlib.nullcontext():
                    scores = model(rows[:, :-1])
                    loss = nn.functional.cross_entropy(scores.flatten(0, 1), rows[:, 1:].flatten())
                    optimizer.zero_grad()
                    loss.backward()
                optimizer.step()

            return 1e3 * time_on_all(work)

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
    parser.add_argument("--link", default="100mbit,15ms", help="link that thinreduce emulates")
    parser.add_argument(
        "--bucket-mb",
        type=float,
        default=25,
        help="DDP's bucket_cap_mb; the first bucket has 1 MiB in any case (default: 25, as in DDP)",
    )
    # gradiveq learns its bases from the first steps, which travel uncompressed.
    args = parse(parser, METHODS, steps=20, warmup=15)
    if args.inside:
        run_rank(args)
        return
    print(f"{args.ranks} ranks, link {args.link}; ms per step, and bytes sent per step and rank")
    for one in reports(args.ranks):
        print(f"{one['method']:28} {one['median']:6.0f} ({one['min']:.0f})  {one['sent']:10,.0f}")


if __name__ == "__main__":
    main()
