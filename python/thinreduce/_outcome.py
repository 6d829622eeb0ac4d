"""The outcome of a step's exchanges."""

from __future__ import annotations

import warnings

from .errors import NonFinite


class Outcome:
    """Collects the errors of a step's buckets. The State's thread writes it, and it holds no
    reference to the State, so that an unused State can be garbage-collected.

    ``skip``: whether a step with NaN or Inf in a gradient gives NaN instead of an exception.
    """

    def __init__(self, skip: bool) -> None:
        self.skip = skip
        self.error: BaseException | None = None  # the last one that backward() raises
        self.cause: BaseException | None = None  # why this rank has ended the step, if it has
        self.failed = False  # whether the current step must be undone
        self.skipped = 0  # number of steps that were skipped
        self._skipping: NonFinite | None = None  # in the current step
        self._warned = False

    def note(self, error: BaseException) -> bool:
        """Notes an error; returns whether its bucket becomes NaN instead of raising it."""
        self.failed = True
        if self.skip and isinstance(error, NonFinite):
            if self._skipping is None:
                self.skipped += 1
                self._skipping = error
            return True
        self.error = self.cause or error  # buckets in flight fail because of it
        return False

    def begin_step(self) -> None:
        """Forgets the last step; warns of the first one that was skipped."""
        skipped, self._skipping = self._skipping, None
        self.failed = False
        self.cause = None
        if skipped is not None and not self._warned:
            self._warned = True
            warnings.warn(
                f"a step was skipped: {skipped}. All ranks got NaN in this bucket's gradients: "
                "skip optimizer.step() for this step, as a GradScaler does by itself. "
                "State.skipped counts such steps; State(nonfinite='raise') raises instead",
                stacklevel=2,
            )
