"""The result of one trial of a scenario."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

from world import LastWords


@dataclass
class Trial:
    outcome: str = ""  # a word or two that the table counts
    seconds: float | None = None  # from the fault until the last survivor had named the culprit
    checked: int = 0  # means that were compared with the oracle
    wrong: int = 0  # of them, those with other bits
    hung: int = 0  # ranks that said nothing
    failure: str = ""  # what should not have been; "": all is well


def judge(
    words: dict[int, LastWords | None], *, began: float, culprit: str, errors: Iterable[str]
) -> Trial:
    """Judges the survivors of a fault: each must have raised one of `errors` with a text in which
    the regular expression `culprit` is found."""
    trial = Trial(outcome="named")
    allowed = set(errors)
    for rank, said in words.items():
        if said is None:
            trial.hung += 1
            trial.failure = f"rank {rank} hangs or has died"
            continue
        trial.checked += said.checked
        trial.wrong += said.wrong
        trial.seconds = max(trial.seconds or 0.0, said.at - began)
        if said.wrong:
            trial.failure = f"rank {rank}: {said.wrong} wrong means"
        elif said.error not in allowed or not re.search(culprit, said.text):
            trial.failure = f"rank {rank}: {said.error or 'done'}: {said.text}"
    return trial
