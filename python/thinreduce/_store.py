"""A part of a torch store, as the engine uses it."""

from __future__ import annotations

import time
from typing import Any

import torch.distributed as dist


class StoreView:
    """The keys of a torch store under a prefix, with the functions that the engine calls.

    torch's own ``wait`` blocks Ctrl-C, and a TCPStore that has timed out once no longer matches
    replies to requests. So a counter beside each key says whether the key is set, and ``wait``
    polls the counter.
    """

    def __init__(self, store: Any, prefix: str) -> None:
        # torch's type hints say that values are str; the store takes and returns bytes.
        self._store: Any = dist.PrefixStore(prefix, store)

    def part(self, prefix: str) -> Any:
        """Returns a torch store of the keys under a further prefix."""
        return dist.PrefixStore(prefix, self._store)

    def set(self, key: str, value: bytes) -> None:
        self._store.set(key, value)
        self._store.add(f"{key}/set", 1)

    def get(self, key: str) -> bytes:
        value: bytes = self._store.get(key)
        return value

    def count(self, key: str, more: int) -> int:
        """Adds to a counter, which starts at 0, and returns it."""
        return int(self._store.add(key, more))

    def has(self, key: str) -> bool:
        return self.count(f"{key}/set", 0) > 0

    def wait(self, keys: list[str], seconds: float) -> None:
        deadline = time.monotonic() + seconds
        pause = 0.001
        for key in keys:
            while not self.has(key):
                if time.monotonic() > deadline:
                    raise TimeoutError(f"no rank set '{key}' within {seconds:g} s")
                time.sleep(pause)
                pause = min(pause * 2, 0.05)
