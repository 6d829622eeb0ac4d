"""States in checkpoints of torch.distributed.checkpoint."""

from __future__ import annotations

import json
from typing import Any

import torch.distributed as dist

from ._arguments import check_type
from .ddp import State


class PerRank:
    """A State in a checkpoint of ``torch.distributed.checkpoint`` (DCP)::

        parts = {"model": ..., "thinreduce": thinreduce.checkpoint.PerRank(state)}
        dcp.save(parts, checkpoint_id=folder)  # or dcp.load

    DCP keeps one copy of equal keys, and residuals differ between ranks; so each rank's state has a
    key of its own. It must be loaded with the same number of ranks.
    """

    def __init__(self, state: State) -> None:
        check_type("state", state, State, "a thinreduce.State")
        self._state = state
        self._key = f"rank{dist.get_rank()}"

    def state_dict(self) -> dict[str, Any]:
        """Returns this rank's state as bytes; DCP calls it to load, too, to learn the key."""
        saved = self._state.state_dict() if self._state.has_state else {"engine": b""}
        head = {name: value for name, value in saved.items() if name != "engine"}
        return {self._key: json.dumps(head).encode() + b"\n" + saved["engine"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Gives the State a result of :meth:`state_dict`."""
        head, engine = state[self._key].split(b"\n", 1)
        self._state.load_state_dict({**json.loads(head), "engine": engine})
