"""Recorded scores: a resume takes them from the journal and does not evaluate again.

The search depends on the scores, and code that exceeds a time limit today may finish tomorrow. So
the journal records each score, like each answer; also the 0 of an answer that the task raises on.
"""

from __future__ import annotations

import os
import traceback
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from orchestry.core.concurrency import together
from orchestry.core.errors import TaskFault, reason
from orchestry.core.secrets import Redactor
from orchestry.core.types import TASK_ERROR, Part, Rate, Score, Trajectory, utf8
from orchestry.store.journal import Event, Journal, Scored
from orchestry.store.run import Store
from orchestry.task.base import BaseTask

FIRST_FAULTS = 8
"""If this many evaluations raise before one succeeds, the task is broken, not an answer odd."""
KEPT = "task_error.txt"
"""The file in the run with the first traceback."""
_MOST = 8_000
"""Characters kept of its beginning and of its end."""


@dataclass(frozen=True, slots=True)
class Faults:
    """Handles states that the task can't score."""

    task: BaseTask[Any]
    store: Store
    warn: Callable[[str], None]

    def score(self, fault: TaskFault) -> Score:
        """A score of 0, with the task's parts."""
        weights = self.task.part_weights
        weights = weights if any(weights.values()) else {"task": 1.0}
        parts = tuple(Part(name=name, value=0.0, weight=weights[name]) for name in weights)
        cause = fault.__cause__
        why = f"{type(cause).__name__}: {reason(cause)}" if cause else str(fault)
        said = _clean(f"The task can't take this answer: {why}")
        return Score(parts=parts, feedback=said, tags=(TASK_ERROR,))

    def tell(self, fault: TaskFault, node: Trajectory[Any]) -> None:
        """Keeps the first traceback and the answer that caused it, and warns."""
        lines = traceback.format_exception(fault.__cause__ or fault)
        if node.turns:
            last = node.turns[-1]
            lines.append(f"\n{last.agent} had answered:\n{last.completion.told}\n")
        self.store.write(KEPT, "".join(map(_clean, [f"{fault}\n\n", *lines])))
        self.warn(
            _clean(
                f"warning: {fault}. This trajectory ends there and scores 0 (tag {TASK_ERROR}); "
            )
            + f"the traceback is in {self.store.folder / KEPT}"
        )

    def count(self, failed: int, scored: int) -> None:
        """Warns with the total number."""
        self.warn(
            f"warning: {failed} of {scored} states could not be scored, since the task raised: "
            f"their trajectories count as 0 (tag {TASK_ERROR}). {self.store.folder / KEPT} has the "
            f"first traceback, `orchestry tasks check {self.task.name} --verbose` looks for others"
        )


class Verdicts:
    """A Rate that asks another one only for states without a score in the journal.

    With `faults`, a TaskFault counts as a score of 0. It enters the journal only after some state
    was scored, because until then the task may be broken and get fixed.
    """

    def __init__(
        self, rate: Rate, journal: Journal, events: Iterable[Event], faults: Faults | None = None
    ) -> None:
        self._rate, self._journal, self._faults = rate, journal, faults
        self._known = {event.key: event.score for event in events if isinstance(event, Scored)}
        self._works = bool(self._known)
        self._told = any(TASK_ERROR in score.tags for score in self._known.values())
        self._held = list[tuple[str, Trajectory[Any], TaskFault]]()

    async def __call__(self, nodes: Sequence[Trajectory[Any]]) -> list[Score]:
        """See Rate. Raises the first TaskFault after FIRST_FAULTS of them without a score."""
        return await together(self._one(node) for node in nodes)

    def check(self, least: int) -> None:
        """Raises the first TaskFault if no state was scored and that many raised."""
        if not self._works and len(self._held) >= least:
            raise self._held[0][2]

    def sum_up(self) -> None:
        """Warns of the states that could not be scored, if there are any."""
        failed = sum(TASK_ERROR in score.tags for score in self._known.values())
        if self._faults and failed and self._works:
            self._faults.count(failed, len(self._known))

    async def _one(self, node: Trajectory[Any]) -> Score:
        key = state_key(node)
        known = self._known.get(key)
        if known is None or (node.fault and TASK_ERROR not in known.tags):
            await self._judge(key, node)
        return self._known[key]

    async def _judge(self, key: str, node: Trajectory[Any]) -> None:
        try:
            (score,) = await self._rate([node])
        except TaskFault as fault:
            if self._faults is None:
                raise
            self._known[key] = self._faults.score(fault)
            self._held.append((key, node, fault))
            self.check(FIRST_FAULTS)
        else:
            self._works = True
            self._keep(key, score)
        if self._works:
            self._let_go()

    def _let_go(self) -> None:
        """Writes the held-back zeros into the journal, and reports the very first."""
        held, self._held = self._held, []
        for key, node, fault in held:
            if self._faults and not self._told:
                self._faults.tell(fault, node)
            self._told = True
            self._keep(key, self._known[key])

    def _keep(self, key: str, score: Score) -> None:
        self._journal.append(Scored(key=key, score=score))
        self._known[key] = score


def _clean(text: str) -> str:
    """The text without secrets and lone surrogates; the middle of a very long text is cut."""
    text = Redactor(os.environ).text(text, len(text))
    if len(text) > 2 * _MOST:
        text = f"{text[:_MOST]}\n[...]\n{text[-_MOST:]}"
    return utf8(text)


def state_key(node: Trajectory[Any]) -> str:
    """A digest of 32 hex digits over the episode, the place in its tree, and all answers on the
    path."""
    digest = blake2b(f"{node.problem.id}\n{node.seed}\n{node.id}".encode(), digest_size=16)
    for turn in node.turns:
        digest.update(turn.mark)
    return digest.hexdigest()
