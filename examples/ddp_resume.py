#!/usr/bin/env python3
"""Trains with checkpoints that include the residuals, and goes on from the last one after a crash.

    torchrun --nproc_per_node=2 examples/ddp_resume.py --folder /tmp/run

The same command again resumes. The weights then have the same bits as without the crash;
`--fail-at 25` lets rank 1 fail to show it. Debian's torchrun 1.13 needs `--redirects 2 --tee 2`.
"""

from __future__ import annotations

import argparse
import hashlib
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch.nn.parallel import DistributedDataParallel

import thinreduce


def batch(step: int, rank: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns a rank's images of a step; real data would come from a DistributedSampler."""
    generator = torch.Generator().manual_seed(1000 * step + rank)
    labels = torch.randint(0, 10, (16,), generator=generator)
    return torch.randn(16, 256, generator=generator) + labels.view(-1, 1) / 3, labels


def last_step(folder: Path, world: int) -> int:
    """Returns the last step that every rank has saved; 0 if there is none."""
    saved = [{int(one.stem) for one in folder.glob(f"rank{r}/*.pt")} for r in range(world)]
    return max(set.intersection(*saved), default=0)


def save(file: Path, contents: dict) -> None:
    """Writes a file that is complete or not there."""
    file.parent.mkdir(parents=True, exist_ok=True)
    torch.save(contents, file.with_suffix(".tmp"))
    os.replace(file.with_suffix(".tmp"), file)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="topk:density=0.05")
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoints")
    parser.add_argument("--steps", type=int, default=40)
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--fail-at", type=int, default=0, help="step at which rank 1 fails")
    args = parser.parse_args()

    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(1)
    net = torch.nn.Sequential(torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Linear(64, 10))
    model = DistributedDataParallel(net)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    state = thinreduce.State(args.method, model=model, optimizer=optimizer)
    model.register_comm_hook(state, thinreduce.hook)

    dist.barrier()  # no rank saves while another one looks for the last step
    first = last_step(args.folder, world)
    if first > 0:
        saved = torch.load(args.folder / f"rank{rank}" / f"{first}.pt")
        model.module.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        state.load_state_dict(saved["thinreduce"])  # this rank's residuals
    dist.barrier()

    for step in range(first + 1, args.steps + 1):
        if step == args.fail_at and rank == 1:
            raise SystemExit("rank 1 fails, as --fail-at asks")
        images, labels = batch(step, rank)
        optimizer.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        optimizer.step()
        if step % args.save_every == 0:
            contents = {
                "model": model.module.state_dict(),
                "optimizer": optimizer.state_dict(),
                "thinreduce": state.state_dict(),
            }
            save(args.folder / f"rank{rank}" / f"{step}.pt", contents)
    bits = hashlib.sha256(b"".join(p.detach().numpy().tobytes() for p in model.parameters()))
    print(f"rank {rank}: from step {first + 1}, weights {bits.hexdigest()[:16]}", flush=True)
    state.close()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
