"""What a team earns on dev problems while it learns, and the update after which it earned most."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestry.rollout import Rollout
from orchestry.search.episode import episode_record
from orchestry.seeds import derive, shuffled
from orchestry.together import together
from orchestry.types import Frozen, Problem


class DevScore(Frozen):
    """Over all trajectories of all dev problems."""

    reward: float
    """Mean, in [0, 1]."""
    tags: dict[str, float]
    """Share of the trajectories with each tag, such as those of cooperation."""


class Best(Frozen):
    """The update whose team earned most so far."""

    update: int
    reward: float
    checkpoint: str


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
        states: Sequence[Mapping[str, Any]],
    ) -> None:
        """`every`: updates between two evaluations, None for none; `states`: what the journal got
        of the updates so far."""
        self._rollout, self._problems, self._seed = rollout, problems, seed
        self._every = every
        best = states[-1].get("best") if states else None
        self.best = Best.model_validate(best) if best else None
        self._rewards = {
            name: [state[key]["reward"] for state in states if key in state][-1]
            for name, key in (("before", "dev_before"), ("last", "dev"))
            if any(key in state for state in states)
        }

    @property
    def rewards(self) -> dict[str, float]:
        """Mean rewards before the first update, at the last evaluation and at the best."""
        best = {"best": self.best.reward} if self.best else {}
        return self._rewards | best

    @property
    def spared(self) -> frozenset[str]:
        """Names of checkpoints that are kept however old they are."""
        return frozenset({Path(self.best.checkpoint).name} if self.best else ())

    async def before(self) -> dict[str, Any]:
        """For the journal: the team as the run began, where evaluations are asked for."""
        if not self._every:
            return {}
        found = await self._score()
        self._rewards["before"] = found.reward
        return {"dev_before": found.model_dump()}

    async def after(self, update: int, checkpoint: Path) -> dict[str, Any]:
        """For the journal: the team after an update, where one is due, and the best so far."""
        if not self._every or update % self._every:
            return {"best": self.best.model_dump()} if self.best else {}
        found = await self._score()
        self._rewards["last"] = found.reward
        if self.best is None or found.reward > self.best.reward:
            self.best = Best(update=update, reward=found.reward, checkpoint=checkpoint.as_posix())
        return {"dev": found.model_dump(), "best": self.best.model_dump()}

    async def _score(self) -> DevScore:
        """All problems at the same time."""
        plays = [
            self._rollout.play(problem, derive(self._seed, "dev", problem.id))
            for problem in self._problems
        ]
        records = [episode_record(tree, n) for n, tree in enumerate(await together(plays))]
        tags: Counter[str] = sum((record.tags() for record in records), Counter())
        leaves = sum(len(list(record.leaves())) for record in records)
        return DevScore(
            reward=fmean(record.mean_leaf_reward for record in records),
            tags={tag: count / leaves for tag, count in sorted(tags.items())},
        )


def chosen(problems: Sequence[Problem], most: int, seed: int) -> list[Problem]:
    """The dev problems that a run is evaluated on."""
    return [problems[place] for place in shuffled(len(problems), seed, "dev")[:most]]


def said(state: Mapping[str, Any]) -> list[str]:
    """An update's evaluations for the user, from what the journal got."""
    if "dev" not in state:
        return []
    best = state["best"]
    tags = "".join(f", {tag} {100 * share:.0f} %" for tag, share in state["dev"]["tags"].items())
    before = state.get("dev_before")
    began = f" (it began at {before['reward']:.3f})" if before else ""
    return [
        f"dev reward {state['dev']['reward']:.3f}{began}{tags}; best {best['reward']:.3f}, after "
        f"update {best['update']}"
    ]
