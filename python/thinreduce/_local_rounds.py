"""The exchanges of local steps: their start, the wait for them, and the change of parameters."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch

from . import _core
from ._flat_tensors import FlatTensors

# Python's signal handlers run between two waits.
_POLL_SECONDS = 0.2


class LocalRounds:
    """Rounds of one set of tensors: the parameters, or the buffers, of a model."""

    def __init__(
        self,
        session: _core.Session,
        options: _core.LocalStepsOptions,
        tensors: FlatTensors,
        *,
        keep_progress: bool,
    ) -> None:
        self.tensors = tensors
        self.engine = _core.LocalSteps(session, options, tensors.shapes())
        self._session = session
        # Whether local steps during an exchange are kept; else the tensors become the anchor.
        self._keep_progress = keep_progress
        self._members = [self.engine.members(f) for f in self.fragments]
        for fragment in self.fragments:
            flat = tensors.read(self._members[fragment])
            self.engine.set_anchor(fragment, flat.data_ptr())

    @property
    def fragments(self) -> range:
        return range(self.engine.fragments)

    def under_way(self) -> list[int]:
        """Returns the fragments whose exchange was started and not applied."""
        return [fragment for fragment in self.fragments if self.engine.under_way(fragment)]

    def changed(self) -> list[int]:
        """Returns the fragments with local steps since their last exchange was started."""
        return [fragment for fragment in self.fragments if self.engine.has_steps(fragment)]

    def start(self, fragments: Iterable[int]) -> None:
        for fragment in fragments:
            flat = self.tensors.read(self._members[fragment])
            self.engine.start(fragment, flat.data_ptr())

    def apply(self, fragment: int) -> dict[str, Any]:
        """Waits for an exchange and moves the tensors; returns the engine's report."""
        self._wait(fragment)
        flat = self.tensors.read(self._members[fragment])
        report = self.engine.apply(fragment, flat.data_ptr())
        if not self._keep_progress:
            self.engine.read_anchor(fragment, flat.data_ptr())
        self.tensors.write(self._members[fragment], flat)
        return report

    def _wait(self, fragment: int) -> None:
        try:
            while not self.engine.wait(fragment, _POLL_SECONDS):
                pass
        except BaseException:  # an interrupted exchange can't be resumed
            self._session.abandon("interrupted")
            self.engine.wait(fragment, 3600.0)
            raise

    def write_anchor(self) -> None:
        """Replaces the tensors by the anchor."""
        for fragment in self.fragments:
            members = self._members[fragment]
            flat = torch.empty(self.tensors.elements(members), dtype=torch.float32)
            self.engine.read_anchor(fragment, flat.data_ptr())
            self.tensors.write(members, flat)
