#!/usr/bin/env python3
"""Trains the GPT of ddp_gpt.py with Accelerate and compressed gradients.

    torchrun --nproc_per_node=2 examples/accelerate_gpt.py --method dqsg

Needs `pip install accelerate`. The model that `prepare()` returns is DDP's, so the hook is
registered with it.
"""

from __future__ import annotations

import argparse

import common
import torch
from accelerate import Accelerator
from ddp_gpt import CONTEXT, Gpt, loss_of

import thinreduce


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="dqsg")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=12, help="windows per rank and batch")
    parser.add_argument("--accumulate", type=int, default=2, help="batches per step")
    args = parser.parse_args()

    torch.set_num_threads(1)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=args.accumulate)
    text, alphabet = common.moby_dick()
    torch.manual_seed(1)
    model = Gpt(alphabet)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    model, optimizer = accelerator.prepare(model, optimizer)
    state = thinreduce.State(args.method, model=model, optimizer=optimizer)
    model.register_comm_hook(state, thinreduce.hook)

    windows = torch.Generator().manual_seed(accelerator.process_index)
    loss = torch.zeros(())
    for _ in range(args.steps * args.accumulate):
        starts = torch.randint(len(text) - CONTEXT, (args.batch,), generator=windows)
        with accelerator.accumulate(model):  # no_sync() of DDP but in the last batch of a step
            loss = loss_of(model, text, starts)
            accelerator.backward(loss)
            if accelerator.sync_gradients:
                accelerator.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            optimizer.zero_grad()
    result = {"method": args.method, "steps": state.stats()["total"]["steps"]}
    common.finish(model, state, {**result, "loss": round(loss.item(), 4)})


if __name__ == "__main__":
    main()
