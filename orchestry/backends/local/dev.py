"""What a team earns on dev problems while it learns."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Sequence
from statistics import fmean
from typing import Any

from orchestry.backends.base import Evaluation
from orchestry.core.seeds import derive, shuffled
from orchestry.core.together import together
from orchestry.core.types import Problem
from orchestry.rollout.rollout import Rollout
from orchestry.rollout.tree import episode_record
from orchestry.store.checkpoints import best, dev_rewards
from orchestry.store.journal import Evaluated


class Dev:
    """The dev evaluations of one run: the same problems and seeds each time, so that what differs
    between two of them is the team.
    """

    def __init__(
        self,
        rollout: Rollout[Any],
        problems: Sequence[Problem],
        seed: int,
        every: int | None,
        found: Iterable[Evaluated],
    ) -> None:
        """`every`: updates between two evaluations, None for none; `found`: those so far."""
        self._rollout, self._problems, self._seed = rollout, problems, seed
        self._every = every
        self._found = {event.update: event for event in found}

    @property
    def best(self) -> Evaluated | None:
        """That of the update whose team earned most so far."""
        return best(self._found.values())

    @property
    def rewards(self) -> dict[str, float]:
        """Mean rewards before the first update, at the last evaluation and at the best."""
        return dev_rewards(self._found.values())

    async def evaluate(self, update: int) -> Evaluation | None:
        """See Backend: the team stands as that update left it."""
        if not self._every or update % self._every or update in self._found:
            return None
        event = self._found[update] = await self._play(update)
        return Evaluation(event, self._said(event))

    async def _play(self, update: int) -> Evaluated:
        """All problems at the same time."""
        plays = [
            self._rollout.play(problem, derive(self._seed, "dev", problem.id))
            for problem in self._problems
        ]
        records = [episode_record(tree, n) for n, tree in enumerate(await together(plays))]
        tags: Counter[str] = sum((record.tags() for record in records), Counter())
        leaves = sum(len(list(record.leaves())) for record in records)
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


def chosen(problems: Sequence[Problem], most: int, seed: int) -> list[Problem]:
    """The dev problems that a run is evaluated on."""
    return [problems[place] for place in shuffled(len(problems), seed, "dev")[:most]]
