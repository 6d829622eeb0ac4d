#!/usr/bin/env python3
"""Trains the GPT of ddp_gpt.py with Lightning and compressed gradients.

    examples/lightning_gpt.py --ranks 2 --method dqsg --folder /tmp/run

Needs `pip install lightning`. The lines that matter are those with `compression`. The same command
after a crash goes on from the last checkpoint, residuals included.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import common
import lightning
import torch
from ddp_gpt import CONTEXT, Gpt, loss_of
from lightning.pytorch.callbacks import ModelCheckpoint

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
    parser.add_argument("--folder", type=Path, required=True, help="for the checkpoints")
    parser.add_argument("--epochs", type=int, default=4, help="each ends with a checkpoint")
    parser.add_argument("--steps", type=int, default=50, help="steps per epoch")
    parser.add_argument("--batch", type=int, default=12, help="windows per rank and step")
    parser.add_argument("--lr", type=float, default=2e-3)
    args = parser.parse_args()

    torch.set_num_threads(1)
    lightning.seed_everything(1, verbose=False)
    text, alphabet = common.moby_dick()
    windows = Windows(text, args.steps * args.batch * args.ranks)
    compression = thinreduce.lightning.callback(args.method)
    # After an epoch, because Lightning starts the data of an epoch from its beginning.
    save = ModelCheckpoint(args.folder, save_last=True)
    trainer = lightning.Trainer(
        accelerator="cpu",
        devices=args.ranks,
        strategy="ddp",
        callbacks=[compression, save],
        max_epochs=args.epochs,
        gradient_clip_val=1.0,
        logger=False,
        enable_progress_bar=False,
        enable_model_summary=False,
    )
    module = Module(alphabet, args.lr)
    data = torch.utils.data.DataLoader(windows, batch_size=args.batch, shuffle=True)
    last = args.folder / "last.ckpt"
    trainer.fit(module, data, ckpt_path=last if last.exists() else None)
    everywhere = [""] * args.ranks
    torch.distributed.all_gather_object(everywhere, common.digest(module))
    if trainer.is_global_zero:
        total = compression.state.stats()["total"]
        result = {"method": args.method, "steps": total["steps"], "loss": module.losses[-1]}
        same = {"same_bits": len(set(everywhere)) == 1, "weights": everywhere[0][:16]}
        print(json.dumps({**result, **same, "ratio": total["ratio"]}), flush=True)


if __name__ == "__main__":
    main()
