"""Players of a game's arrays that teach language models: what they do is what is learned."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("numba")

import numpy as np

import orchestry
from orchestry import load_run
from orchestry.core.errors import ConfigError
from orchestry.engine.evaluate import evaluate
from orchestry.engine.games import policy_of
from orchestry.ext.distil.examples import Examples, examples
from orchestry.ext.distil.winners import Lesson
from orchestry.store.journal import Learned
from orchestry.task.registry import load_task
from tests.tasks.local_runs import roomy_model

pytestmark = pytest.mark.usefixtures("one_thread")
QUICK = {"scenario": "hard", "rules": {"min_nights": 2}, "max_nights": 3}
TWO_PHASES = {"rules": {"commitment_mode": "two_phase"}}
GAMES = 3
SMALL: dict[str, Any] = {"rank": 4, "alpha": 8, "threads": 1}


@pytest.fixture(scope="module")
def learned(tmp_path_factory: pytest.TempPathFactory) -> str:
    """The folder of a run of backend ppo that trained against others in two seats."""
    folder = tmp_path_factory.mktemp("ppo") / "teacher"
    config = {
        "task": "bucket_brigade",
        "backend": "ppo",
        "options": QUICK,
        "agents": {f"agent_{seat}": {"plays": ["guard", "random"]} for seat in (1, 3)},
        "ppo": {"games": 16, "horizon": 8, "steps": 256, "minibatch": 64, "hidden": [8]},
    }
    orchestry.train(config, folder)
    return str(folder)


def replayed(options: dict[str, Any], found: Examples, player: Any, games: Sequence[Any]) -> int:
    """Plays each agent's answers again, in these games (problem and seed); returns how many there
    were. Each was asked what the agent then saw, and is what this player in its seat does."""
    task: Any = load_task("bucket_brigade", options=options)
    roles = [spec.role for spec in task.agents]
    every = lessons(found)
    told = {(one.agent, one.messages[-1].content): one.answer for one in every}
    assert len(told) == len(every), "each once"
    count = 0
    for place, seed in games:
        state, begun = task.reset(task.problems("train")[place], seed), True
        players = [player(task, seat) for seat in range(len(roles))]
        while acting := task.to_act(state):
            said = {}
            for seat, role in enumerate(roles):
                own = task.seen(state)[None, [seat]]
                action = players[seat].act(own, np.array([begun]))[0, 0]
                said[role] = told[role, task.observe(state, role)]
                assert said[role] == task.said(state, action)
                count += 1
            state, begun = task.step(state, {role: said[role] for role in acting}), False
    return count


def lessons(found: Examples) -> list[Lesson]:
    """All of them, held out or not."""
    return [one for one in (*found.lessons, *found.held_out) if isinstance(one, Lesson)]


def scripted(name: str) -> Any:
    return lambda task, seat: task.script(name, (seat,), 1, 0)


@pytest.mark.parametrize("options", [{}, TWO_PHASES, {"scenario": "hard"}], ids=str)
def test_what_a_scripted_player_does_is_learned(options: dict[str, Any], tmp_path: Path) -> None:
    config = {"task": "bucket_brigade", "options": options, "provider": {"model": "any"}}
    found = examples(config=config, teacher="guard", games=GAMES)
    games = [(place, 0) for place in range(GAMES)]
    assert replayed(options, found, scripted("guard"), games) >= GAMES * 4 * 12
    every = lessons(found)
    assert {one.run for one in every} == {"teacher"}
    assert {one.model for one in every} == {"guard"}
    assert all(one.messages[0].role == "system" and one.ended for one in every)


def test_more_games_than_problems_are_other_games() -> None:
    config = {"task": "bucket_brigade", "provider": {"model": "any"}, "options": QUICK}
    found = examples(config=config, teacher="always_work", games=66)
    second = [(0, 1), (1, 1)]
    assert replayed(QUICK, found, scripted("always_work"), second) >= len(second) * 4 * 2


def test_a_player_that_draws_does_so_anew_in_each_game() -> None:
    """The first evenings of most games are alike; drawn alike, their answers would count once."""
    config = {"task": "bucket_brigade", "provider": {"model": "any"}, "options": QUICK}
    found = examples(config=config, teacher="random", games=20)
    first = {o.answer for o in lessons(found) if "Night 0," in o.messages[-1].content}
    assert len(first) > 10


def test_a_learned_policy_teaches_a_team_that_plays_all_seats(learned: str, tmp_path: Path) -> None:
    out, run = tmp_path / "out", load_run(learned)
    config = {"provider": {"model": str(roomy_model(tmp_path))}, "learn": SMALL}
    again = examples(config=config, teacher=learned, games=2)
    policy = lambda task, seat: policy_of(run, task.vectors(1, 0), [f"agent_{seat}"], 0, True)  # noqa: E731
    assert replayed(QUICK, again, policy, [(0, 0), (1, 0)]) > 12, "its likeliest actions"
    with pytest.raises(ConfigError, match="so it is the teacher: leave out teacher="):
        run.distil(out, teacher="guard")
    done = run.distil(out, config=config, games=2, epochs=1)
    assert done.agents == tuple(f"agent_{seat}" for seat in range(4))
    assert sum(done.examples.values()) == len(again.lessons) > 12
    run = load_run(out)
    assert run.config["options"] == QUICK, "the teacher's"
    assert not any(own.get("plays") for own in run.config.get("agents", {}).values())
    (event,) = (event for event in run.events if isinstance(event, Learned))
    assert event.state["distilled"]["teacher"] == learned
    (last,) = [event for event in load_run(learned).events if isinstance(event, Learned)][-1:]
    told = json.loads((out / "distil.json").read_text())["teacher"]
    assert told == {"player": learned, "digest": last.state["digest"]}
    measured = evaluate(out, episodes=1)
    assert len(measured.episodes) == 1
    assert len(measured.episodes[0].best_node.score.returns) == 4


@pytest.mark.parametrize(
    ("config", "how", "why"),
    [
        ({}, {"teacher": "guard"}, "--teacher without a run needs the task"),
        ({}, {"teacher": "gard"}, "unknown scripted agent 'gard': did you mean 'guard'?"),
        ({"task": "tldr"}, {"teacher": "guard"}, "task tldr has no games that guard could play"),
        ({}, {"teacher": "guard", "method": "dpo"}, "--teacher has no worse ones: leave it out"),
        ({}, {"gold": True, "games": 3}, "--games is of --teacher"),
        ({}, {"teacher": "guard", "games": 0}, "games is 0: give 1 to 100000"),
        ({}, {"teacher": "guard", "top": 0.5}, "choose among the trajectories of runs"),
        ({}, {"teacher": "runs/none"}, "no run lies there"),
        (
            {"agents": {"agent_1": {"plays": "guard"}}},
            {"teacher": "guard"},
            "has seats that others play: leave out --teacher, or agents.ROLE.plays",
        ),
        (
            {"agents": {"agent_1": {"chain": ["plan"]}}},
            {"teacher": "guard"},
            "guard plays actions, without what agents.ROLE.infer",
        ),
    ],
)
def test_what_no_teacher_can_teach_is_refused(
    config: dict[str, Any], how: dict[str, Any], why: str
) -> None:
    task = {} if why.startswith("--teacher") else {"task": "bucket_brigade"}
    with pytest.raises(ConfigError, match=why):
        examples(config={**task, "provider": {"model": "any"}, **config}, **how)


def test_a_policy_of_another_game_is_refused(learned: str) -> None:
    config = {"provider": {"model": "any"}, "options": {"rules": {"num_houses": 6}}}
    with pytest.raises(ConfigError, match="the policy was learned from 42 numbers per observation"):
        examples(config=config, teacher=learned)
    with pytest.raises(ConfigError, match="`orchestry distil --teacher RUN` has language models"):
        examples([learned], config={"provider": {"model": "any"}})
