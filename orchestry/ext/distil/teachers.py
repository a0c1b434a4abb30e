"""A player of a game's arrays as a team's teacher: it plays by text, and says what it does.

So a policy of backend ppo, or a scripted player, teaches language models.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from orchestry.core.errors import ConfigError
from orchestry.core.types import Completion, Member, Policy, Problem, Request
from orchestry.engine.games import check_needs, last_checkpoint, policy_of
from orchestry.engine.run import in_own_loop
from orchestry.ext.distil.gold import played
from orchestry.ext.distil.winners import Lesson, lessons
from orchestry.store.run import Run
from orchestry.task.setup import Setup
from orchestry.task.thinking import Thoughtful
from orchestry.task.vector import Script, VectorTask

TAUGHT = "teacher"
"""In place of a run's name, whose answers are a teacher's."""


@dataclass(slots=True)
class _Teacher:
    """A policy that plays one game, all seats of it."""

    game: Any
    """The task, a VectorTask."""
    roles: Sequence[str]
    script: Script
    name: str
    state: Any
    begun: bool = True

    async def sample(self, requests: Sequence[Request], n: int) -> list[list[Completion]]:
        """See Policy. The requests are of all who act in the game's next stage."""
        import numpy as np

        actions_NH = self.script.act(self.game.seen(self.state)[None], np.array([self.begun]))[0]
        said = {
            one.agent: self.game.said(self.state, actions_NH[self.roles.index(one.agent)])
            for one in requests
        }
        self.state, self.begun = self.game.step(self.state, said), False
        return [[Completion(text=said[one.agent], model=self.name)] * n for one in requests]


def taught(
    setup: Setup, team: Mapping[str, Member], teacher: str, run: Run | None, games: int
) -> list[Lesson]:
    """What each agent would have said in so many games of the config's split, had it done what the
    teacher does: a scripted player of the task, or the policy of a `run` of backend ppo, which
    takes its likeliest actions.

    Raises ConfigError for a task without games as arrays, for an unknown teacher, and for one that
    learned in games of another shape.
    """
    task, problems = setup.task, setup.problems
    opened = _opener(teacher, run, _game(setup, teacher), [*team])
    players = list[tuple[Policy, Problem, int]]()
    for number in range(games):
        seed, place = divmod(number, len(problems))
        first = task.reset(problems[place], seed)
        player = _Teacher(task, [*team], opened(number), Path(teacher).name, first)
        players.append((player, problems[place], seed))
    return [
        lesson
        for tree in in_own_loop(played(setup, team, players))
        for turn in tree.leaves[0].trajectory.turns
        for lesson in lessons(turn, tree.root.trajectory.problem.id, TAUGHT, tree.leaves[0].total)
    ]


def _game(setup: Setup, teacher: str) -> VectorTask:
    """The task; raises ConfigError if nobody can play it by arrays."""
    if isinstance(setup.task, Thoughtful):
        raise ConfigError(
            f"{teacher} plays actions, without what agents.ROLE.infer or agents.ROLE.chain has an "
            "agent say before them: leave both out"
        )
    if not isinstance(setup.task, VectorTask):
        raise ConfigError(
            f"task {setup.config.task} has no games that {teacher} could play as arrays, or has "
            "seats that others play: leave out --teacher, or agents.ROLE.plays"
        )
    check_needs("--teacher")
    return setup.task


def _opener(
    teacher: str, run: Run | None, task: VectorTask, roles: Sequence[str]
) -> Callable[[int], Script]:
    """Opens the teacher for a game by its number, in all seats."""
    if run is None:
        return lambda number: task.script(teacher, tuple(range(len(roles))), 1, number)
    policy = policy_of(run, task.vectors(1, 0), roles, likeliest=True)
    return lambda number: policy  # it draws nothing


def named(teacher: str, run: Run | None) -> dict[str, str]:
    """Who taught: a scripted player's name, or a run's folder and the digest of its weights."""
    if run is None or (last := last_checkpoint(run.events)) is None:
        return {"player": teacher}
    return {"player": str(run.folder.absolute()), "digest": str(last.state["digest"])}
