"""How well a run learns: its team's reward on dev problems, and notes on updates that teach
nothing.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from orchestry.backends.base import Evaluation, too_short
from orchestry.core.concurrency import together
from orchestry.core.seeds import derive, shuffled
from orchestry.core.types import Problem
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.tree import episode_record
from orchestry.store.checkpoints import best_evaluation, dev_summary
from orchestry.store.collapse import advice, flat_kind
from orchestry.store.journal import Evaluated


class DevEvaluations:
    """The dev evaluations of one run, always with the same problems and seeds, so that only the
    team differs.
    """

    def __init__(self, problems: Sequence[Problem], seed: int, every: int | None) -> None:
        """`every`: updates between two evaluations; None: no evaluations."""
        self.problems = problems
        self._seed, self._every = seed, every
        self._found: dict[int, Evaluated] = {}

    def go_on(self, found: Iterable[Evaluated]) -> None:
        """Takes over the evaluations of the run's earlier processes."""
        self._found = {event.update: event for event in found}

    @property
    def best(self) -> Evaluated | None:
        """The evaluation with the highest reward so far, after an update."""
        return best_evaluation(self._found.values())

    @property
    def rewards(self) -> dict[str, float]:
        """Mean rewards before the first update, at the last evaluation and at the best."""
        return dev_summary(self._found.values())

    async def evaluate(self, rollout: Rollout[Any], update: int) -> Evaluation | None:
        """See Backend: evaluates the team after that update."""
        if not self._every or update % self._every or update in self._found:
            return None
        event = self._found[update] = await self._play(rollout, update)
        return Evaluation(event, self._said(event))

    async def _play(self, rollout: Rollout[Any], update: int) -> Evaluated:
        """Plays all problems at the same time."""
        plays = [
            rollout.play(problem, derive(self._seed, "dev", problem.id))
            for problem in self.problems
        ]
        records = [episode_record(tree, n) for n, tree in enumerate(await together(plays))]
        tags: Counter[str] = sum((record.tags() for record in records), Counter())
        leaves = sum(len(record.trajectories()) for record in records)
        return Evaluated(
            update=update,
            reward=fmean(record.mean_leaf_reward for record in records),
            tags={tag: count / leaves for tag, count in sorted(tags.items())},
            at=time.time(),
        )

    def _said(self, event: Evaluated) -> str:
        tags = "".join(f", {tag} {100 * share:.0f} %" for tag, share in event.tags.items())
        text = f"dev reward {event.reward:.3f}{tags}"
        if not event.update or (top := self.best) is None:
            return f"{text}, before the first update"
        began = self._found.get(0)
        since = f"; it began at {began.reward:.3f}" if began else ""
        return f"{text}{since}; best {top.reward:.3f}, after update {top.update}"


def dev_problems(problems: Sequence[Problem], most: int, seed: int) -> list[Problem]:
    """The dev problems that a run is evaluated on."""
    return [problems[place] for place in shuffled(len(problems), seed, "dev")[:most]]


def leftover(episodes: int, every: int) -> list[str]:
    """Before a run: a note on episodes that belong to no update."""
    left = episodes % every
    if not left or left == episodes:
        return too_short("learn.every", every, episodes)
    return [
        f"the last {left} of {episodes} episodes teach nothing, since an update takes "
        f"learn.every={every} episodes, the run has {episodes}: set --episodes "
        f"{episodes - left} or {episodes - left + every}"
    ]


def empty_updates(samples: Sequence[int], reward: float, last: bool) -> list[str]:
    """After an update. `samples`: actions used in each update so far; `reward`: the block's mean.

    The first update without learning gets a note (`store.collapse` tells of several in a row), and
    after the `last` update their number is shown.
    """
    notes = list[str]()
    if samples.count(0) == 1 and not samples[-1]:
        helps = advice({"backend": "local"}, flat_kind(reward))
        notes.append(
            "nothing to learn from in this update: in every group all earned the same (reward "
            f"{reward:.3f}); what helps: {helps}"
        )
    if last and not any(samples):
        notes.append(
            f"nothing was learned: none of the {len(samples)} updates found a difference in reward "
            "within a group, and the weights are those that the run began with"
        )
    elif last and 0 in samples:
        notes.append(f"{samples.count(0)} of {len(samples)} updates had nothing to learn from")
    return notes
