"""gepa.optimize itself, on a team whose model is planted: its drafter is lucky, or has the rule."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

gepa = pytest.importorskip("gepa")
pytest.importorskip("openai")

import orchestry
from orchestry.core.errors import BudgetExceeded, ConfigError, OrchestryError
from orchestry.ext.bridges.gepa import TeamAdapter
from orchestry.store.journal import Answered, Stopped, read
from tests.cli.support import TASKS, Reply, chat, served

RULE = "Every draft must be good."
TASK = """
from orchestry import AgentSpec, Problem, TeamTask

class Pair(TeamTask):
    name = "pair"
    agents = (
        AgentSpec(role="checker", system_prompt="You say what matters."),
        AgentSpec(role="drafter", system_prompt="You draft."),
    )

    def problems(self, split):
        return [Problem(id=f"{split}-{n}", prompt=f"On {n}.", split=split) for n in range(4)]

    async def evaluate(self, state, tools):
        good = "good" in (state.last("drafter") or "")
        return self.score(quality=1.0 if good else 0.25, feedback="" if good else "It is poor.")
"""
USD = 10 * 0.1e-6 + 5 * 5e-6
"""Dollars that the server bills for a call."""
CAP = 0.0032
OFF = {"behaviors": {"enabled": False}, "judge": {"enabled": False}}


class Model:
    """What the server was asked, and what it says."""

    def __init__(self) -> None:
        self.bodies: list[dict[str, Any]] = []
        self.status = 200

    @property
    def reflections(self) -> list[str]:
        asked = [body["messages"][-1]["content"] for body in self.bodies]
        return [text for text in asked if "I provided an assistant" in text]

    def answer(self, number: int, body: dict[str, Any]) -> Reply:
        self.bodies.append(body)
        if "I provided an assistant" in body["messages"][-1]["content"]:
            return self.status, chat(f"```\n{RULE}\n```")
        luck = blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=1).digest()[0]
        good = RULE in body["messages"][0]["content"] or luck < 80
        return self.status, chat(f"A {'good' if good else 'poor'} text of {luck}.")


@contextmanager
def planted(tmp_path: Path) -> Iterator[tuple[Model, dict[str, Any]]]:
    """The model, and the config of a team that asks it."""
    (tmp_path / "tasks" / "pair").mkdir(parents=True)
    (tmp_path / "tasks" / "pair" / "task.py").write_text(TASK)
    model = Model()
    with served(model.answer) as url:
        yield (
            model,
            {
                "task": "pair",
                "task_path": [str(tmp_path / "tasks")],
                "provider": {"name": "openai", "model": "m", "base_url": url},
                "prices": {"m": {"input": 0.1, "output": 5.0}},
                "sampling": {"max_tokens": 16},
                "judge": {"max_tokens": 64},
                "cache": {"enabled": False},
            },
        )


class Quiet:
    def log(self, message: str) -> None: ...


def optimised(team: TeamAdapter, calls: int = 40, **how: Any) -> Any:
    return gepa.optimize(
        seed_candidate=team.seed_candidate,
        trainset=team.problems("train"),
        valset=team.problems("dev"),
        adapter=team,
        reflection_lm=team.reflection_lm,
        max_metric_calls=calls,
        stop_callbacks=team.stopped,
        logger=Quiet(),
        **how,
    )


def test_gepa_improves_the_agent_that_matters_and_a_second_time_is_free(tmp_path: Path) -> None:
    with planted(tmp_path) as (model, config):
        with TeamAdapter(config, tmp_path / "gepa") as team:
            result = optimised(team, run_dir=str(tmp_path / "state"))
            spent = team.spent
        assert result.best_candidate == {"checker": "You say what matters.", "drafter": RULE}
        first, best = result.val_aggregate_scores[0], result.val_aggregate_scores[result.best_idx]
        assert first < 0.8 < best == 1.0
        assert model.reflections
        assert spent == pytest.approx(len(model.bodies) * USD)
        events = read(tmp_path / "gepa" / "journal.jsonl")
        assert {one.purpose for one in events if isinstance(one, Answered)} == {
            "act",
            "credit",
            "distil",
        }
        calls = len(model.bodies)
        with TeamAdapter(config, tmp_path / "gepa") as team:
            again = optimised(team)
            assert team.spent == pytest.approx(spent)
        assert again.val_aggregate_scores == result.val_aggregate_scores
        assert len(model.bodies) == calls


def test_credit_blames_who_caused_it(tmp_path: Path) -> None:
    with planted(tmp_path) as (model, config), TeamAdapter(config, tmp_path / "gepa", 3) as team:
        batch = team.problems("train")
        plain = team.evaluate(batch, team.seed_candidate)
        assert plain.trajectories is None
        assert len(model.bodies) == 2 * len(batch)
        traced = team.evaluate(batch, team.seed_candidate, capture_traces=True)
        assert all(0.25 <= score <= 1.0 for score in plain.scores + traced.scores)
        assert [len(said) for said in traced.outputs] == [9] * len(batch)
        calls = len(model.bodies)
        rows = team.make_reflective_dataset(team.seed_candidate, traced, ["checker", "drafter"])
        assert len(model.bodies) == calls
    for row in rows["drafter"]:
        assert set(row) == {"Inputs", "Generated Outputs", "Feedback"}
        assert row["Inputs"].startswith("On ")
        assert "You draft." not in row["Inputs"]
    poor, good = (
        [row for row in rows["drafter"] if f"reward was {reward}" in row["Feedback"]]
        for reward in ("0.25 of 1 (quality 0.25)", "1.00 of 1 (quality 1.00)")
    )
    assert poor
    assert good
    assert all("It is poor." in row["Feedback"] for row in poor)
    assert all("poor text" in row["Generated Outputs"] for row in poor)
    assert mean_credit(poor) < -0.1 < 0.3 < mean_credit(good)
    assert abs(mean_credit(rows["checker"])) < 0.05
    (whole,) = {row["Feedback"].splitlines()[-1] for row in rows["checker"]}
    found = re.search(r"this agent ([+-]\d.\d+), drafter ([+-]\d.\d+)", whole)
    assert found
    assert abs(float(found[1])) < 0.1 < 0.3 < float(found[2])


def mean_credit(rows: list[dict[str, str]]) -> float:
    found = [re.search(r"caused ([+-]\d.\d+)", row["Feedback"]) for row in rows]
    assert all(found)
    return sum(float(one[1]) for one in found if one) / len(found)


@pytest.mark.slow
def test_one_cap_holds_for_all_and_a_larger_one_goes_on(tmp_path: Path) -> None:
    notes = list[str]()
    with planted(tmp_path) as (model, config):
        config["budget"] = {"usd": CAP}
        with TeamAdapter(config, tmp_path / "gepa", note=notes.append) as team:
            cut = optimised(team, raise_on_exception=False)
            assert team.stopped()
        assert model.reflections
        assert "is spent" in notes[-1]
        assert len(model.bodies) * USD <= CAP
        assert cut.val_aggregate_scores
        with (
            TeamAdapter(config, tmp_path / "gepa") as team,
            pytest.raises(BudgetExceeded, match=r"raise budget\.usd"),
        ):
            optimised(team)
        config["budget"] = {"usd": 5.0}
        with TeamAdapter(config, tmp_path / "gepa") as team:
            whole = optimised(team)
            assert team.spent == pytest.approx(len(model.bodies) * USD)
    assert whole.best_candidate["drafter"] == RULE


def test_another_model_may_reflect_under_the_same_cap(tmp_path: Path) -> None:
    other = Model()
    with planted(tmp_path) as (model, config), served(other.answer) as url:
        writer = {"name": "openai", "model": "w", "base_url": url}
        config["behaviors"] = {"provider": writer}
        config["prices"]["w"] = {"input": 1.0, "output": 5.0}
        with TeamAdapter(config, tmp_path / "gepa") as team:
            answers = [team.reflection_lm("I provided an assistant") for _ in range(2)]
            assert team.spent == pytest.approx(2 * (10 * 1e-6 + 5 * 5e-6))
    assert answers == [f"```\n{RULE}\n```"] * 2
    assert not model.bodies
    assert [body["model"] for body in other.bodies] == ["w", "w"]
    assert other.bodies[0]["seed"] != other.bodies[1]["seed"]


def test_what_can_not_be_a_tree_is_played_in_chains(tmp_path: Path) -> None:
    """Programs, and long tasks."""
    notes = list[str]()
    config = {"task_path": [str(TASKS)], "provider": {"name": "fake"}, "cache": {"enabled": False}}
    with TeamAdapter({**config, "task": "chatter"}, tmp_path / "program") as team:
        assert set(team.seed_candidate) == {"writer", "critic"}
        found = team.evaluate(team.problems("dev")[:1], {"writer": "Count first."}, True)
        rows = team.make_reflective_dataset({}, found, ["writer"])["writer"]
    assert [len(said) for said in found.outputs] == [2]
    assert [row["Inputs"].startswith("Write of ") for row in rows] == [True] * len(rows) != []
    turns = [turn for node in found.trajectories[0].nodes for turn in node.turns]
    told = {turn.messages[0].content for turn in turns if turn.agent == "writer"}
    assert told == {"You are writer.\n\nCount first."}
    with TeamAdapter({**config, "task": "words"}, tmp_path / "words", 6, notes.append) as team:
        found = team.evaluate(team.problems("dev")[:2], team.seed_candidate, True)
    assert [len(said) for said in found.outputs] == [6, 6]
    (note,) = [note for note in notes if "played in 6 chains" in note]
    assert note.startswith("258 states in the tree of dev-0")


def test_what_is_wrong_is_said(tmp_path: Path) -> None:
    with planted(tmp_path) as (model, config):
        with pytest.raises(ConfigError, match="samples=0 per state"):
            TeamAdapter(config, tmp_path / "gepa", 0)
        with pytest.raises(ConfigError, match="backend local trains weights"):
            TeamAdapter({**config, "backend": "local"}, tmp_path / "gepa")
        with TeamAdapter(config, tmp_path / "gepa") as team:
            batch = team.problems("train")[:1]
            with pytest.raises(ConfigError, match="unknown agent 'draftr'"):
                team.evaluate(batch, {"draftr": "You draft."})
            team.evaluate(batch, {"drafter": "You draft."})
        with pytest.raises(ConfigError, match="use it inside `with"):
            team.evaluate(batch, {"drafter": "You draft."})
        changed = {**config, "sampling": {"max_tokens": 17}}
        with pytest.raises(ConfigError, match=r"sampling in gepa\.yaml"):
            TeamAdapter(changed, tmp_path / "gepa").__enter__()
        run = orchestry.train({**config, "task": "tldr", "episodes": 1, **OFF}, tmp_path / "run")
        with pytest.raises(ConfigError, match="holds a run"):
            TeamAdapter(config, run.folder).__enter__()
        model.status = 401
        with (
            pytest.raises(OrchestryError, match="401"),
            TeamAdapter(config, tmp_path / "other") as team,
        ):
            optimised(team, raise_on_exception=False)


def test_ctrl_c_ends_it_in_order(tmp_path: Path) -> None:
    def stop(team: TeamAdapter) -> None:
        with team:
            team.evaluate(team.problems("train")[:1], team.seed_candidate)
            raise KeyboardInterrupt

    with planted(tmp_path) as (_, config), pytest.raises(KeyboardInterrupt):
        stop(TeamAdapter(config, tmp_path / "gepa"))
    events = read(tmp_path / "gepa" / "journal.jsonl")
    assert [event.reason for event in events if isinstance(event, Stopped)] == ["interrupted"]
