"""Processes of a launch that play a small game: `python -m tests.backends.ppo.launched FOLDER`."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from orchestry.backends.launch import joined
from orchestry.backends.ppo.learner import Learner, Seats
from orchestry.backends.ppo.loss import Rows
from orchestry.backends.ppo.ranks import ParallelLearner, Shared
from orchestry.backends.ppo.running import Moments
from orchestry.core.errors import LearnError
from orchestry.core.ppo import PpoConfig

GAMES, ROWS, MEANT, CHOICES = 6, 40, 5, (4, 3)
ECHO = '''
import numpy as np

from orchestry import AgentSpec, BaseTask, ConfigError, Problem

LENGTH, KINDS = 8, 4


class Games:
    """Two agents each see one of four things, and earn 1 by naming it. A game has 8 steps."""

    choices = (KINDS,)

    def __init__(self, games, seed):
        self._random = np.random.default_rng(seed)
        self._left, self._which = np.full(games, LENGTH), np.zeros((games, 2), np.int64)
        self.rewards, self.cut = np.zeros((games, 2)), np.zeros(games, bool)
        self.ended = self.cut.copy()
        self.observations = np.zeros((games, 2, KINDS), np.float32)
        self.final = self.observations.copy()
        self._deal()

    def _deal(self):
        self._which[:] = self._random.integers(KINDS, size=self._which.shape)
        self.observations[:] = np.eye(KINDS, dtype=np.float32)[self._which]

    def step(self, actions):
        self.rewards[:] = actions[..., 0] == self._which
        self._left -= 1
        self.ended[:] = self._left == 0
        self._left[self.ended] = LENGTH
        self.final[:] = self.observations
        self._deal()

    def state(self):
        words = np.frombuffer(str(self._random.bit_generator.state).encode(), np.uint8)
        return {"left": self._left.copy(), "which": self._which.copy(), "random": words.copy()}

    def restore(self, state):
        self._left[:], self._which[:] = state["left"], state["which"]
        self._random.bit_generator.state = eval(state["random"].tobytes().decode())
        self.observations[:] = np.eye(KINDS, dtype=np.float32)[self._which]


class Echo(BaseTask):
    """Only its arrays are played."""

    name = "echo"
    agents = tuple(AgentSpec(role=role, system_prompt=role) for role in ("left", "right"))

    def problems(self, split):
        return [Problem(id=split, prompt="name it", split=split)]

    def reset(self, problem, seed):
        return problem

    def to_act(self, state):
        return ()

    def observe(self, state, agent):
        return ""

    def step(self, state, actions):
        return state

    async def evaluate(self, state, tools):
        return self.score(quality=0.0)

    def vectors(self, games, seed):
        return Games(games, seed)

    def script(self, name, seats, games, seed):
        raise ConfigError(f"no player {name}")

    def seen(self, state):
        return np.zeros((2, KINDS), np.float32)

    def said(self, state, action):
        return ""
'''
"""A task of a user, which every process loads by itself."""


class Still:
    """Games in which nothing happens, except that one may break."""

    choices: tuple[int, ...] = CHOICES

    def __init__(self, games: int, rank: int) -> None:
        drawn = np.random.default_rng(rank)
        self.observations = drawn.normal(MEANT, 2, (games, 2, 7)).astype(np.float32)
        self.observations[..., 0] = 0.1  # a number that never varies
        self.final, self.rewards = self.observations, drawn.normal(size=(games, 2))
        self.ended, self.cut = np.zeros(games, np.bool_), np.zeros(games, np.bool_)
        self.breaks = False

    def step(self, actions: NDArray[np.int8]) -> None:
        if self.breaks:
            raise ZeroDivisionError("a broken game")
        self.ended[:] = ~self.ended

    def state(self) -> dict[str, NDArray[Any]]:
        return {}

    def restore(self, state: object) -> None:
        pass


def settings(**changes: Any) -> PpoConfig:
    given = {"games": 2 * GAMES, "horizon": 4, "minibatch": 16, "learning_rate": 1e-3}
    return PpoConfig(**{**given, **changes})


def drawn(policies: int) -> list[torch.Tensor]:
    """ROWS rows of each policy: what is seen, and the columns of Rows."""
    generator = torch.Generator().manual_seed(3)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(policies, ROWS, *shape, generator=generator)

    picked = [torch.randint(k, (policies, ROWS), generator=generator) for k in CHOICES]
    return [some(7), torch.stack(picked, -1), some() / 9 - 2.5, some() * 3 + 1, some(), some()]


def steps(learner: Learner, columns: Sequence[torch.Tensor]) -> dict[str, Any]:
    """The gradient of a first step, the weights after three, and its figures."""
    seen, *rest = columns
    rows = Rows(*rest)
    (spread,) = learner._spreads([rows.advantages_PM])
    figures = learner._step(seen, seen, rows, spread, True)
    first = learner._grad_PW.clone()
    for _ in range(2):
        learner._step(seen, seen, rows, spread, False)
    return {"gradient": first, "weights": learner.team.flat_PW, "length": figures["gradient_norm"]}


def counted(moments: Moments, parts: Sequence[torch.Tensor]) -> dict[str, torch.Tensor]:
    """After rows in three parts, of which the last two are settled together."""
    for number, part in enumerate(parts):
        moments.add(part)
        if number != 1:
            moments.settle()
    return moments.state()


def seen(rank: int) -> list[torch.Tensor]:
    """Rows of one process, in three parts; the first number never varies."""
    generator = torch.Generator().manual_seed(rank)
    parts = [torch.randn(50 + rank, 3, generator=generator) * 3 + MEANT for _ in range(3)]
    for part in parts:
        part[:, 0] = 0.1
    return parts


def meet(folder: Path) -> None:
    """What each process makes of its share; faults are planted in the second one."""
    processes, found = joined(), dict[str, Any]()
    rank, half = processes.rank, ROWS // 2
    processes.tell = lambda *command: None  # type: ignore[method-assign]  # each calls by itself
    for policies in ("shared", "own"):
        own = settings(policies=policies)
        learner = ParallelLearner(processes, Still(GAMES, rank), own, Seats((0, 1)))
        share = slice(rank * half, (rank + 1) * half)
        found[policies] = steps(learner, [one[:, share] for one in drawn(learner.team.policies)])
    found["moments"] = counted(Shared(processes, 3, torch.device("cpu")), seen(rank))
    games = Still(GAMES, rank)
    learner = ParallelLearner(processes, games, settings(), Seats((0, 1)))
    found["figures"] = [learner.iterate() for _ in range(3)]
    found["state"] = learner.state()
    games.breaks = rank == 1
    for name in ("broken", "apart"):
        try:
            learner.iterate() if name == "broken" else learner.state()
        except LearnError as error:
            found[name] = str(error)
        learner.team.flat_PW[0, 0] += rank * 1e-6
    torch.save(found, folder / f"{rank}.pt")


def _port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def launching(
    first: Sequence[str],
    other: Sequence[str] = ("orchestry", "run"),
    at: Sequence[Path | None] = (None, None),
) -> Iterator[list[subprocess.Popen[str]]]:
    """Two processes under way, as a launcher sets their variables; none is left. The other one gets
    a bare command: process 0 tells it all. `at`: their working folders."""
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "OMP_NUM_THREADS": "1"}
    common |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(_port())}
    common["PYTHONPATH"] = str(Path(__file__).parents[3])
    with ExitStack() as stack:
        found = list[subprocess.Popen[str]]()
        for rank, command in enumerate((first, other)):
            process = subprocess.Popen(
                [sys.executable, "-m", *command],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                cwd=at[rank],
                env={**os.environ, **common, "RANK": str(rank), "LOCAL_RANK": str(rank)},
            )
            stack.callback(process.communicate)
            stack.callback(process.kill)
            found.append(process)
        yield found


if __name__ == "__main__":
    meet(Path(sys.argv[1]))
