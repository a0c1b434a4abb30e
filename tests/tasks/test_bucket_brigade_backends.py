"""One recorded sequence of actions earns the same, per agent and night, by every backend and by
upstream's Python."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import orchestry
from orchestry.core.config import resolve
from orchestry.store.run import Run
from orchestry.task.registry import load_task
from tests.cli.support import chat, served
from tests.tasks.local_runs import ROOM, roomy_model

load_task("bucket_brigade")
TEXT, GAME = (import_module(f"orchestry_tasks.bucket_brigade.{name}") for name in ("text", "game"))
TRACE = Path(__file__).with_name("bucket_brigade_trace.jsonl")
RECORDED = [json.loads(line) for line in TRACE.read_text().splitlines()]
HARD, QUIET, SMALL, OTHERS, TWO_PHASES = 4, 6, 29, 40, 39
"""Recorded games of `hard`, `trivial_cooperation`, `v2_minimal`, and two variants of `default`."""
TASK = """
from orchestry_tasks.bucket_brigade.task import BucketBrigade


class Replayed(BucketBrigade):
    '''Every game has the luck of a recorded one.'''

    name = "replayed"

    def reset(self, problem, seed):
        return super().reset(problem.model_copy(update={"id": "trace"}), NUMBER)
"""

Says = Callable[[str], str]
Train = Callable[[list[str], Says, Path], Run]


def says(recorded: Any) -> Says:
    """The recorded action, in words, of the agent and night that a prompt asks about."""

    def answer(prompt: str) -> str:
        night = int(re.findall(r"Night (\d+), at least", prompt)[-1])
        agent, what = re.findall(r"You are agent_(\d)\. What do you (\w+)\?", prompt)[-1]
        act = GAME.Action(*recorded["nights"][1 + night]["acts"][int(agent)])
        text: str = TEXT.answer(act, what == "announce")
        return text

    return answer


def by_api(sets: list[str], answer: Says, folder: Path) -> Run:
    """A server on loopback speaks for the model."""

    def reply(number: int, body: dict[str, Any]) -> tuple[int, bytes]:
        return 200, chat(answer(body["messages"][-1]["content"]))

    with served(reply) as url:
        model = "provider={name: openai, model: m, base_url: " + url + "}"
        own = (model, "prices={m: {input: 0, output: 0}}", "search.strategy=single")
        return orchestry.train(resolve([], [*sets, *own]), folder / "run")


def by_local(sets: list[str], answer: Says, folder: Path) -> Run:
    """A vLLM server on loopback says the answers, with the weights' log-probabilities of them."""
    pytest.importorskip("transformers")
    from tests.ext.vllm.vllmloopback import vllm

    with vllm(context=ROOM, says=answer) as server:
        model = f"provider.model={roomy_model(folder)}"
        own = (
            "backend=local",
            model,
            f"learn.vllm_url={server.url}",
            "learn.group_size=2",
            "learn.top_p=1",
            "learn.threads=1",
        )
        return orchestry.train(resolve([], [*sets, *own]), folder / "run")


@pytest.mark.parametrize(
    ("train", "number"),
    [
        *((by_api, number) for number in (HARD, SMALL, OTHERS, TWO_PHASES)),
        pytest.param(by_local, SMALL, marks=pytest.mark.slow),
    ],
)
@pytest.mark.usefixtures("one_thread")
def test_a_recorded_game_earns_by_a_backend_what_it_earned_upstream(
    number: int, train: Train, tmp_path: Path
) -> None:
    recorded = RECORDED[number]
    (tmp_path / "replayed").mkdir()
    (tmp_path / "replayed" / "task.py").write_text(TASK.replace("NUMBER", str(number)))
    sets = [
        "task=replayed",
        f"task_path=[{tmp_path}]",
        f"options.scenario={recorded['scenario']}",
        f"options.rules={json.dumps(recorded['rules'])}",
        "episodes=1",
        "budget.usd=1",
        "sampling.max_tokens=40",
    ]
    run = train(sets, says(recorded), tmp_path)
    (episode,) = run.episodes
    returns = np.array([node.score.returns for node in episode.path(episode.best)])
    by_night = returns[1::2] if number == TWO_PHASES else returns
    upstreams = np.cumsum([night["rewards"] for night in recorded["nights"][1:]], axis=0)
    assert by_night == pytest.approx(upstreams, abs=1e-2)
    assert episode.best_node.score.tags == ()


def test_a_recorded_game_earns_by_ppos_games_what_it_earned_upstream() -> None:
    """One in which nothing burns, since these games draw their own luck. With the recorded luck,
    all games are played beneath them, in test_bucket_brigade_vectors.py."""
    pytest.importorskip("numba")
    recorded = RECORDED[QUIET]
    task: Any = load_task("bucket_brigade", options={"scenario": recorded["scenario"]})
    games = task.vectors(2, 0)
    for night in recorded["nights"][1:]:
        games.step(np.array([night["acts"]] * 2, np.int8))
        assert games.rewards == pytest.approx(np.array([night["rewards"]] * 2), abs=1e-3)
        assert games.ended.tolist() == [night["done"]] * 2
