"""PettingZoo's own games, AEC and Parallel, as tasks."""

from __future__ import annotations

import asyncio
import itertools
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("pettingzoo")
pytest.importorskip("pygame")

import pettingzoo

import orchestry
from orchestry import AgentSpec, Limits, Tools
from orchestry.cli import main
from orchestry.core.config import resolve
from orchestry.core.errors import TaskError
from orchestry.ext.bridges.pettingzoo import GAMES, ILLEGAL, PettingZooTask, Played
from orchestry.sandbox import open_sandbox
from orchestry.task.guard import Play
from tests.backends.letters import EVERY, GROUP, adapters, learned, settings
from tests.backends.local.tiny import tiny_folder

TOOLS = Tools(sandbox=open_sandbox(Limits()))
ROLES = ("player_1", "player_2")


class TicTacToe(PettingZooTask):
    """AEC, with a mask."""

    name = "tictactoe"
    agents = tuple(AgentSpec(role=role) for role in ROLES)
    low, high, earner = -1.0, 1.0, "player_1"

    def make(self) -> Any:
        return pettingzoo.make("aec", "classic/tictactoe-v3")

    def render(self, observation: Any, agent: str) -> str:
        free = [str(i) for i, legal in enumerate(observation["action_mask"]) if legal]
        return f"You are {agent}. Free: {' '.join(free)}"

    def parse(self, text: str, observation: Any, agent: str) -> Any:
        square = int(text)
        if not observation["action_mask"][square]:
            raise ValueError(f"square {square} is taken")
        return square


class Rps(PettingZooTask):
    """Parallel."""

    name = "rps"
    agents = tuple(AgentSpec(role=role) for role in ("player_0", "player_1"))
    low, high, earner = -15.0, 15.0, "player_0"

    def make(self) -> Any:
        return pettingzoo.make("parallel", "classic/rps-v2")

    def render(self, observation: Any, agent: str) -> str:
        return f"The other showed {observation}."

    def parse(self, text: str, observation: Any, agent: str) -> Any:
        return ("rock", "paper", "scissors").index(text)


def played(task: PettingZooTask, texts: Iterator[str], number: int = 0) -> Played:
    problem = task.problems("train")[number]
    play = Play(task, problem, task.reset(problem, 0), lambda agent: next(texts))
    for _ in play:
        pass
    return play.state


def score(task: PettingZooTask, state: Played) -> Any:
    return asyncio.run(task.evaluate(state, TOOLS))


def test_an_aec_game_is_played_to_its_end() -> None:
    task = TicTacToe()
    state = played(task, iter("03142"))
    assert [agent for ((agent, _),) in state.moves] == [*ROLES, *ROLES, "player_1"]
    assert score(task, state).returns == (1.0, -1.0)
    assert score(task, state).total == 1.0
    lost = score(task, played(TicTacToe(), iter("031485")))
    assert (lost.returns, lost.total) == ((-1.0, 1.0), 0.0)


def test_a_parallel_game_moves_all_at_once() -> None:
    task = Rps()
    state = played(task, itertools.cycle(["rock", "scissors"]))
    assert {tuple(agent for agent, _ in said) for said in state.moves} == {("player_0", "player_1")}
    assert score(task, state).returns == (15.0, -15.0)
    assert score(task, state).total == 1.0
    assert task.observe(Played(state.problem, state.moves[:1]), "player_0").endswith("showed 2.")


class Masked:
    """Games whose masks stand in `info`."""

    def seen(self, observation: Any, info: Any, agent: str) -> Any:
        return {"of": agent, **info}

    def render(self, observation: Any, agent: str) -> str:
        return f"{observation['of']} may {observation['mask']}"

    def parse(self, text: str, observation: Any, agent: str) -> Any:
        return observation["mask"].index(text)


class MaskedTicTacToe(Masked, TicTacToe):
    def make(self) -> Any:
        env = super().make()
        env.unwrapped.infos = infos = {role: {"mask": "012345678"} for role in ROLES}
        reset = env.unwrapped.reset

        def resetting(*args: Any, **rest: Any) -> None:
            reset(*args, **rest)
            env.unwrapped.infos = infos

        env.unwrapped.reset = resetting
        return env


class MaskedRps(Masked, Rps):
    def make(self) -> Any:
        env = super().make()
        reset, step = env.reset, env.step
        infos = {spec.role: {"mask": "rps"} for spec in self.agents}
        env.reset = lambda **rest: (reset(**rest)[0], infos)
        env.step = lambda actions: (*step(actions)[:-1], infos)
        return env


def test_what_a_game_puts_into_info_is_handed_over() -> None:
    task = MaskedTicTacToe()
    assert score(task, played(task, iter("03142"))).returns == (1.0, -1.0)
    both = MaskedRps()
    state = played(both, itertools.cycle("rs"))
    assert score(both, state).returns == (15.0, -15.0)
    told = both.observe(Played(state.problem, state.moves[:1]), "player_1")
    assert told == "player_1 may rps"


def test_states_are_reached_in_any_order() -> None:
    """A search goes back to earlier states, and games are forgotten meanwhile."""
    moves = [*itertools.permutations("0123", 4)]
    random.Random(0).shuffle(moves)
    task, problem = TicTacToe(), TicTacToe().problems("train")[0]
    for texts in moves:
        for length in random.Random(str(texts)).sample(range(5), 5):
            turns = zip(itertools.cycle(ROLES), texts[:length], strict=False)
            state = Played(problem, tuple(((agent, text),) for agent, text in turns))
            free = [n for n in "012345678" if n not in texts[:length]]
            (agent,) = task.to_act(state)
            assert task.observe(state, agent) == f"You are {agent}. Free: {' '.join(free)}"
    assert len(task._games) <= GAMES


def test_an_answer_that_is_no_action_ends_the_game() -> None:
    task = TicTacToe()
    state = played(task, iter(["4", "the middle"]))
    found = score(task, state)
    assert (found.total, found.tags) == (0.0, (ILLEGAL,))
    assert "player_2: invalid literal for int()" in found.feedback
    taken = score(task, played(TicTacToe(), iter("44")))
    assert taken.feedback == "player_2: square 4 is taken"


def test_a_game_that_draws_elsewhere_is_found() -> None:
    class Moody(Rps):
        name = "moody"

        def render(self, observation: Any, agent: str) -> str:
            return str(random.random())

        def make(self) -> Any:
            env = pettingzoo.make("parallel", "classic/rps-v2")
            step = env.step

            def moody(actions: Any) -> Any:
                seen, rewards, *rest = step(actions)
                return seen, dict.fromkeys(rewards, random.random()), *rest

            env.step = moody
            return env

    task = Moody()
    with pytest.raises(TaskError, match="seed 0 came out otherwise when it was played again"):
        score(task, played(task, itertools.cycle(["rock"])))


def test_roles_are_those_of_the_game() -> None:
    class Strangers(TicTacToe):
        name = "strangers"
        agents = (AgentSpec(role="x"), AgentSpec(role="o"))

    task = Strangers()
    with pytest.raises(TaskError, match="its agents are x, o, and those of the game player_1"):
        task.to_act(task.reset(task.problems("train")[0], 0))


GAME = """
import pettingzoo
from orchestry import AgentSpec
from orchestry.ext.bridges.pettingzoo import PettingZooTask

class Xo(PettingZooTask):
    name = "xo"
    agents = (AgentSpec(role="player_1"), AgentSpec(role="player_2"))
    low, high, earner = -1.0, 1.0, "player_1"

    def make(self):
        return pettingzoo.make("aec", "classic/tictactoe-v3")

    def render(self, observation, agent):
        return str(observation["action_mask"])

    def parse(self, text, observation, agent):
        if not text.strip():
            raise ValueError("it is empty")
        free = [n for n, legal in enumerate(observation["action_mask"]) if legal]
        return free[len(text) % len(free)]
"""


def test_a_game_is_searched_and_checked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "xo").mkdir()
    (tmp_path / "xo" / "task.py").write_text(GAME)
    sets = ["task=xo", f"task_path=[{tmp_path}]", "provider.name=fake", "episodes=2"]
    run = orchestry.train(resolve([], [*sets, "search.k_samples=3"], {}), tmp_path / "run")
    assert run.config["search"]["strategy"] == "beam"
    ends = [leaf.score.returns for one in run.episodes for leaf in one.leaves()]
    assert set(ends) <= {(1.0, -1.0), (-1.0, 1.0), (0.0, 0.0)}
    assert len(set(ends)) > 1
    with pytest.raises(SystemExit) as exited:
        main(["tasks", "check", "xo", "--task-path", str(tmp_path)])
    assert exited.value.code == 0, capsys.readouterr()


@pytest.mark.slow
def test_weights_learn_from_a_game(tmp_path: Path, one_thread: None) -> None:
    """The game's returns are what backend local's updates are made of."""
    (tmp_path / "xo").mkdir()
    (tmp_path / "xo" / "task.py").write_text(GAME)
    model = str(tiny_folder(tmp_path / "tiny"))
    run = orchestry.train(resolve([], settings(model, tmp_path, "task=xo")), tmp_path / "run")
    ends = [leaf.score.total for one in run.episodes for leaf in one.leaves()]
    assert len(ends) == 2 * EVERY * GROUP
    assert len(set(ends)) > 1
    assert [event.state["samples"] > 0 for event in learned(run)] == [True, True]
    assert len(set(adapters(run.folder).values())) == 2 * len(ROLES)


def test_a_return_outside_its_bounds_is_an_error() -> None:
    class Narrow(TicTacToe):
        low, high = 0.0, 0.5

    with pytest.raises(TaskError, match=r"a reward of -?1 is not between low=0 and high=0\.5"):
        score(Narrow(), played(Narrow(), iter("0314256")))


def test_an_earner_that_the_game_lacks_is_an_error() -> None:
    class Nobody(TicTacToe):
        earner = "player_3"

    with pytest.raises(TaskError, match="of player_3, and only player_1, player_2 had one"):
        score(Nobody(), played(Nobody(), iter("0314256")))
