"""How the ranks of a new world find keys of a torch store that are theirs alone."""

from __future__ import annotations

import time

from ._agreement import no_rank_0
from ._store import StoreView
from ._time_limit import TimeLimit

_LONGEST_PAUSE = 0.05


def name_of_meeting(store: StoreView, rank: int, world: int, limit: TimeLimit) -> str:
    """Returns a name that all ranks of this meeting share and no earlier one had.

    The ranks have different pasts, and some may have left an earlier meeting in the middle. So rank
    0 chooses a number, and gives it to every rank that asks, until all have said that they know it.
    A rank that comes again asks under a number of its own, so that it gets no old answer. Ranks
    that are missing when the time is over are missing in the agreement that follows, which names
    them. Raises Timeout on a rank that rank 0 does not answer.
    """
    if rank > 0:
        question = store.count(f"questions/{rank}", 1)
        answer = f"answer/{rank}/{question}"
        try:
            store.wait([answer], limit.left())
        except TimeoutError:
            raise no_rank_0(rank, limit) from None
        name = store.get(answer).decode()
        store.set(f"{name}/knows/{rank}", b"")
        return name
    name = f"meeting{store.count('meetings', 1)}"
    answered = dict.fromkeys(range(1, world), 0)
    pause = 0.001
    while answered:
        for peer in list(answered):
            question = store.count(f"questions/{peer}", 0)
            if question > answered[peer]:
                store.set(f"answer/{peer}/{question}", name.encode())
                answered[peer] = question
            if store.has(f"{name}/knows/{peer}"):
                del answered[peer]
        if limit.left() <= 0:
            break
        time.sleep(pause)
        pause = min(pause * 2, _LONGEST_PAUSE)
    return name
