#!/usr/bin/env python3
"""Computes the mean of numpy arrays over several processes, without torch.

    examples/numpy_allreduce.py --ranks 4 --method dqsg:levels=7

This starts four ranks on this machine. For several machines, start each rank yourself with RANK,
WORLD_SIZE, MASTER_ADDR and MASTER_PORT set.
"""

from __future__ import annotations

import argparse
import multiprocessing
import os
import socket
import sys
import zlib

import numpy as np

import thinreduce


def gradient(rank: int, step: int, shape: tuple[int, int]) -> np.ndarray:
    """Returns an array that all ranks have in common, plus noise of this rank."""
    common = np.random.default_rng(step).standard_normal(shape, dtype=np.float32)
    own = np.random.default_rng((step, rank)).standard_normal(shape, dtype=np.float32)
    return common + 0.3 * own


def run(rank: int, world: int, master: str, args: argparse.Namespace) -> None:
    shape = (args.rows, 1024)
    with thinreduce.connect(rank, world, master, link=args.link, momentum_inside_ok=True) as comm:
        for step in range(args.steps):
            mean = comm.all_reduce_mean(gradient(rank, step, shape), args.method)
        truth = np.mean([gradient(one, args.steps - 1, shape) for one in range(world)], axis=0)
        error = float(np.square(mean - truth).sum() / np.square(truth).sum())
        total = comm.stats()["total"]
        # All ranks must hold the same bits: each puts its checksum into its own slot of an array,
        # and the mean of these arrays must hold the same checksum in every slot.
        checksum = zlib.crc32(mean.tobytes()) & 0xFFFF
        slots = np.zeros(world, np.float32)
        slots[rank] = world * checksum
        same = bool((np.rint(comm.all_reduce_mean(slots, "fp32")) == checksum).all())
        if rank == 0:
            print(
                f"{args.method}: {world} ranks, {mean.size} floats, {args.steps} steps: "
                f"payload {total['ratio']:.1f}x smaller, squared error of the last mean "
                f"{error:.3g} of its energy, same result everywhere: {'yes' if same else 'no'}"
            )
        if not same:
            sys.exit(1)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--ranks", type=int, default=2, help="number of ranks to start")
    parser.add_argument("--method", default="dqsg:levels=7", help="a method with options")
    parser.add_argument("--rows", type=int, default=1000, help="rows of 1024 floats")
    parser.add_argument("--steps", type=int, default=5)
    parser.add_argument("--link", default="", help='emulate a slow network: "100mbit,5ms"')
    args = parser.parse_args()
    if "RANK" in os.environ:
        master = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        run(int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"]), master, args)
        return
    master = f"127.0.0.1:{free_port()}"
    ranks = [
        multiprocessing.Process(target=run, args=(rank, args.ranks, master, args))
        for rank in range(args.ranks)
    ]
    for rank in ranks:
        rank.start()
    for rank in ranks:
        rank.join()
    sys.exit(max(abs(rank.exitcode or 0) for rank in ranks))


if __name__ == "__main__":
    main()
