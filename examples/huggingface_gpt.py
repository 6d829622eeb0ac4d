#!/usr/bin/env python3
"""Trains a small GPT-2 with the Trainer of Hugging Face and compressed gradients.

    torchrun --nproc_per_node=2 examples/huggingface_gpt.py --method dqsg --folder /tmp/run

Needs `pip install transformers accelerate`. The line that matters is the one with attach(). The
same command after a crash goes on from the last checkpoint, residuals included.
"""

from __future__ import annotations

import argparse
import json

import common
import torch
import torch.distributed as dist
from transformers import GPT2Config, GPT2LMHeadModel, Trainer, TrainingArguments
from transformers.trainer_utils import get_last_checkpoint

import thinreduce

CONTEXT = 64


class Windows(torch.utils.data.Dataset):
    def __init__(self, text: torch.Tensor) -> None:
        self.rows = text[: len(text) // CONTEXT * CONTEXT].view(-1, CONTEXT)

    def __len__(self) -> int:
        return len(self.rows)

    def __getitem__(self, index: int) -> dict[str, torch.Tensor]:
        return {"input_ids": self.rows[index], "labels": self.rows[index]}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--method", default="dqsg")
    parser.add_argument("--folder", required=True, help="for the checkpoints")
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--stop-at", type=int, default=0, help="end early, as if it was stopped")
    parser.add_argument("--save-every", type=int, default=50)
    parser.add_argument("--batch", type=int, default=12, help="windows per rank and step")
    parser.add_argument("--accumulate", type=int, default=1, help="batches per step")
    args = parser.parse_args()

    torch.set_num_threads(1)
    arguments = TrainingArguments(
        output_dir=args.folder,
        use_cpu=True,
        ddp_backend="gloo",
        max_steps=args.steps,
        per_device_train_batch_size=args.batch,
        gradient_accumulation_steps=args.accumulate,
        learning_rate=2e-3,
        save_steps=args.save_every,
        logging_steps=10,
        report_to=[],
        disable_tqdm=True,
    )
    text, alphabet = common.moby_dick()
    torch.manual_seed(1)
    config = GPT2Config(
        vocab_size=alphabet, n_positions=CONTEXT, n_embd=128, n_layer=2, n_head=4,
        bos_token_id=0, eos_token_id=0, resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
    )  # fmt: skip
    trainer = Trainer(GPT2LMHeadModel(config), arguments, train_dataset=Windows(text))
    compression = thinreduce.huggingface.attach(trainer, args.method)
    if args.stop_at:
        trainer.add_callback(stop_at(args.stop_at))
    trainer.train(resume_from_checkpoint=get_last_checkpoint(args.folder))

    state = compression.state
    everywhere = [""] * dist.get_world_size()
    digest = common.digest(trainer.model)
    dist.all_gather_object(everywhere, digest)
    if dist.get_rank() == 0 and state is not None:
        total = state.stats()["total"]
        losses = [entry["loss"] for entry in trainer.state.log_history if "loss" in entry]
        result = {"method": args.method, "steps": total["steps"], "loss": losses[-1]}
        same = {"same_bits": len(set(everywhere)) == 1, "weights": digest[:16]}
        print(json.dumps({**result, **same, "ratio": total["ratio"]}), flush=True)
    dist.barrier()
    dist.destroy_process_group()


def stop_at(step: int) -> object:
    """Returns a callback that ends training after a step."""
    from transformers import TrainerCallback

    class Stop(TrainerCallback):
        def on_step_end(self, args, state, control, **_):
            control.should_training_stop = state.global_step >= step

    return Stop()


if __name__ == "__main__":
    main()
