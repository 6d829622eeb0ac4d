#!/usr/bin/env python3
"""Trains the GPT of ddp_gpt.py with Lightning and compressed gradients.

    examples/lightning_gpt.py --ranks 2 --method dqsg        (pip install lightning)

The two lines that matter are the arguments of DDPStrategy.
"""

from __future__ import annotations

import argparse
import json

import common
import lightning
import torch
from ddp_gpt import CONTEXT, Gpt, loss_of
from lightning.pytorch.strategies import DDPStrategy

import thinreduce


class Windows(torch.utils.data.Dataset):
    """Random windows of the text, as many as are asked for."""

    def __init__(self, text: torch.Tensor, count: int) -> None:
        self.text = text
        self.starts = torch.randint(
            len(text) - CONTEXT, (count,), generator=torch.Generator().manual_seed(1)
        )

    def __len__(self) -> int:
        return len(self.starts)

    def __getitem__(self, index: int) -> torch.Tensor:
        start = self.starts[index]
        return self.text[start : start + CONTEXT + 1]


class Module(lightning.LightningModule):
    def __init__(self, alphabet: int, lr: float) -> None:
        super().__init__()
        self.gpt, self.lr = Gpt(alphabet), lr
        self.losses: list[float] = []

    def training_step(self, rows: torch.Tensor, _: int) -> torch.Tensor:
        loss = loss_of(self.gpt, rows.flatten(), torch.arange(len(rows)) * (CONTEXT + 1))
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.AdamW(self.parameters(), lr=self.lr, weight_decay=0.01)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="dqsg")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--batch", type=int, default=12, help="windows per rank and step")
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(1, verbose=False)
    text, alphabet = common.moby_dick()
    windows = Windows(text, args.steps * args.batch * args.ranks)
    state = thinreduce.State(args.method)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.ranks,
        strategy=DDPStrategy(ddp_comm_state=state, ddp_comm_hook=thinreduce.hook),
        max_steps=args.steps,
        gradient_clip_val=1.0,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module(alphabet, args.lr)
    trainer.fit(module, torch.utils.data.DataLoader(windows, batch_size=args.batch))
    bits = trainer.strategy.model.module if trainer.strategy.model is not module else module
    everywhere = [""] * args.ranks
    torch.distributed.all_gather_object(everywhere, common.digest(bits))
    if trainer.is_global_zero:
        total = state.stats()["total"]
        result = {"method": args.method, "steps": total["steps"], "loss": module.losses[-1]}
        print(
            json.dumps({**result, "same_bits": len(set(everywhere)) == 1, "ratio": total["ratio"]}),
            flush=True,
        )


if __name__ == "__main__":
    main()
