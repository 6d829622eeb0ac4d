"""Gradients that every run of the program has, and the means that they must give."""

from __future__ import annotations

import functools
import hashlib
from concurrent.futures import ThreadPoolExecutor

import numpy as np
from numpy.typing import NDArray

import thinreduce

SHAPE = (60, 100)
# Steps whose means are known. Later ones are reduced and not compared.
STEPS = 30
SPECS = [
    "fp32", "bf16", "dqsg", "ndqsg", "fft", "topk:density=0.05", "gradiveq", "powersgd", "qsgd",
    "terngrad", "sketch",
]  # fmt: skip


def gradient(rank: int, step: int) -> NDArray[np.float32]:
    generator = np.random.default_rng([rank, step])
    return generator.standard_normal(SHAPE, dtype=np.float32)


def digest(mean: NDArray[np.float32]) -> bytes:
    return hashlib.blake2b(mean.tobytes(), digest_size=16).digest()


@functools.cache
def expected(spec: str, world: int) -> list[bytes]:
    """Returns the digests of the means of all steps, from ranks that are threads: no network, no
    faults. Means must have the same bits over every transport."""

    def run(comm: thinreduce.Comm) -> list[bytes]:
        found = []
        for step in range(STEPS):
            mean = comm.all_reduce_mean(gradient(comm.rank, step), spec)
            if spec == "fp32":  # the oracle's own oracle
                plain = np.mean([gradient(rank, step) for rank in range(world)], axis=0)
                assert np.allclose(mean, plain, atol=1e-6)
            found.append(digest(mean))
        return found

    with ThreadPoolExecutor(world) as pool:
        comms = thinreduce.local(world)
        all_found = list(pool.map(run, comms))
        list(pool.map(lambda comm: comm.close(), comms))
    assert all(found == all_found[0] for found in all_found)
    return all_found[0]
