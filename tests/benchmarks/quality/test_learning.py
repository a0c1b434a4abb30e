"""The learning benchmark: the peers' connection, the equal count of calls, and what it reports."""

from __future__ import annotations

import dataclasses
import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page import ROOT
from benchmarks.quality.learning import LABELS, PEERS, Bench, plans, play, results
from benchmarks.quality.learning_cost import forecast
from benchmarks.quality.learning_host import calls_of, optimise, wall_s
from benchmarks.quality.learning_report import report
from benchmarks.server.bill import Options
from benchmarks.server.loopback import spawn
from orchestry.backends.library import IN_RUN, Behavior, Evidence, read_library, to_yaml
from orchestry.core.config import RunConfig, validate
from orchestry.core.types import Turn
from orchestry.store.journal import Answered, Event, Opened, Stopped
from orchestry.store.run import Run, load_run
from orchestry.task.registry import load_task

CODE = "```python\ndef is_even(n):\n    return n % 2 == 0\n```"
SCRIPT = (
    {"agent": "reviewer", "text": "LGTM"},
    {"agent": "writer", "text": CODE},
    {"agent": "refactorer", "text": CODE},
    {"agent": "reflection", "text": "Here it is:\n```\nBe exact.\n```"},
)
PEER = """\
import os, sys
from benchmarks.peers.learning_line import serve
def optimise(line):
    assert "OPENAI_API_KEY" not in os.environ, "a peer asks no server"
    order = line.order
    prompts, train = order["prompts"], [*order["train"]]
    assert "even" in order["dev"]["is_even"], "texts by id"
    first, _ = line.play(prompts, ["is_even", train[0]])
    if {dies}:
        sys.exit("died of a cold")
    before = line.calls
    line.play(prompts, ["is_even"])
    assert line.calls == before, "what was asked once is free"
    question = [dict(role="user", content="Better?")]
    other = {{**prompts, "writer": line.reflect(question)}}
    rewards = [line.play(p, ["is_even"])[0]["reward"] for p in (prompts, other)]
    turns = {{turn["agent"]: turn for turn in first["turns"]}}
    assert "is_even" in turns["writer"]["saw"] and turns["reviewer"]["answered"] == "LGTM"
    while any(line.play(other, train[:8])):
        train = train[8:]
    last = line.reflect([dict(role="user", content="And now?")])
    assert before < line.calls <= order["calls"]
    assert line.calls < order["calls"] or not last, "the calls are spent"
    kept = [dict(prompts=prompts, dev=rewards[0]), dict(prompts=other, dev=rewards[1] / 2)]
    line.done(kept, {best})
serve(optimise)
"""


SHOT = "Asked:\nSort a list.\n\nAnswered:\nsorted(xs)"


def peer(*, dies: bool = False, best: int = 0) -> list[str]:
    return [sys.executable, "-c", PEER.format(dies=dies, best=best)]


@pytest.fixture
def provider(tmp_path: Path) -> dict[str, Any]:
    script = tmp_path / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
    return {"name": "fake", "fake": {"script": str(script)}}


@pytest.fixture
def config(provider: dict[str, Any]) -> RunConfig:
    plain = {"behaviors": {"enabled": False}, "judge": {"enabled": False}}
    return validate({**plain, "provider": provider, "allow_unsafe_code": True})


def test_a_peer_has_its_team_played_and_paid_once(
    config: RunConfig, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret-of-the-test")
    found = optimise(config, tmp_path / "peer", 50, peer())
    assert [kept.dev for kept in found.kept] == [1.0, 0.5]
    assert found.winner.prompts == found.kept[0].prompts
    assert found.kept[1].prompts["writer"].endswith("Be exact.\n```")
    # two plays, a reflection, the writer with its new prompt, and what was left for plays of train
    assert calls_of(found.usage) == found.asked == 50
    assert found.seconds > 0
    assert optimise(config, tmp_path / "peer", 50, ["/no/such/program"]) == found


def test_a_peer_that_died_goes_on_with_the_answers_it_had(
    config: RunConfig, tmp_path: Path
) -> None:
    with pytest.raises(RuntimeError, match=r"died of a cold"):
        optimise(config, tmp_path / "peer", 50, peer(dies=True))
    found = optimise(config, tmp_path / "peer", 50, peer())
    answers = [e.key for e in load_run(tmp_path / "peer").events if isinstance(e, Answered)]
    assert len(answers) == len(set(answers)) == calls_of(found.usage)


def test_the_time_of_several_processes_is_added_without_the_gaps() -> None:
    def opened(at: float) -> Opened:
        return Opened(at=at, provider="fake", model="m")

    events: list[Event] = [opened(10.0), Stopped(reason="failed", at=12.5), opened(100.0)]
    events += [opened(200.0), Stopped(reason="done", at=201.0)]
    assert wall_s(events) == pytest.approx(3.5)


@pytest.fixture
def bench(provider: dict[str, Any], tmp_path: Path) -> Bench:
    peers = {name: peer() for name in PEERS}
    return Bench(
        tmp_path / "bench", "code_review", episodes=3, samples=2, provider=provider, peers=peers
    )


@pytest.mark.slow
def test_the_whole_bench_from_training_to_report(bench: Bench) -> None:
    found = results([bench], [bench], [0, 1])
    (played,) = found.played
    asked = [calls_of(run.summary.usage) for run in played.trained]
    for optimised in played.optimised.values():
        assert [one.asked for one in optimised] == asked
        assert all(calls_of(one.usage) <= one.asked for one in optimised)
    assert {run.config["split"] for run in played.tested["ours"]} == {"test"}
    assert {run.config["split"] for run in played.trained} == {"train"}
    body = report(found)
    assert "No learner changed a prompt." in body
    for label in LABELS.values():
        assert f"| code_review | {label} |" in body
    assert "| 0.000 [0.000, 0.000] |" in body, "equal prompts have equal answers"
    again = results([bench], [], [0, 1]).played[0]
    assert [run.folder for run in again.trained] == [run.folder for run in played.trained]


@pytest.mark.slow
def test_what_was_learned_is_played_and_reported(bench: Bench) -> None:
    place = bench.train(0).folder / IN_RUN
    won = Evidence(pairs=40, lift=0.2, low=0.05, high=0.35, e_value=50.0, level=0.025)
    behavior = Behavior(agent="writer", text="Handle `[]`\nfirst.", status="accepted", evidence=won)
    other = Behavior(agent="reviewer", text="Be kind.")
    shot = Behavior(agent="writer", kind="example", text=SHOT, status="accepted", evidence=won)
    place.write_text(to_yaml(read_library(place).put(behavior).put(other).put(shot)))
    peers = {**bench.peers, "mipro": peer(best=1)}
    found = results([dataclasses.replace(bench, peers=peers)], [], [0])
    tested = found.played[0].tested
    shown = {name: first_prompt(run) for name, (run,) in tested.items()}
    assert "Handle `[]`" in shown["ours"]
    (ours,) = tested["ours"]
    roles = [message.role for message in first_turn(ours).messages]
    assert roles == ["system", "user", "assistant", "user"], "an example is a turn of the chat"
    assert "Be exact." in shown["mipro"]
    assert shown["gepa"] == shown["off"]
    body = report(found)
    assert "- code_review, seed 0, ours, for the writer: `Handle '[]' first.`" in body
    assert "- code_review, seed 0, DSPy MIPROv2, for the writer: `Here it is: " in body
    assert "GEPA, for the" not in body
    assert "Nobody is shown gold answers." in body
    lift = "+20.0 points [+5.0, +35.0] on 40 pairs, e-value 50 (40 decides)"
    assert f"| code_review | 0 | writer | rule | {lift} | accepted |" in body


@pytest.mark.slow
def test_contestants_are_chosen_and_gold_is_told(bench: Bench) -> None:
    place = bench.train(0).folder / IN_RUN
    shot = Behavior(agent="writer", kind="example", text=SHOT, why="gold of p1", status="trial")
    place.write_text(to_yaml(read_library(place).put(shot)))
    names = {name: LABELS[name] for name in ("off", "ours")}
    body = report(results([bench], [], [0], names))
    assert "Ours tries gold answers to train problems" in body
    assert not any(LABELS[name] in body for name in PEERS)


def first_prompt(run: Run) -> str:
    return first_turn(run).messages[0].content


def first_turn(run: Run) -> Turn:
    episode = run.episodes[0]
    return episode.path(episode.best)[0].turns[0]


@pytest.mark.slow
def test_one_budget_caps_all_runs_and_a_larger_one_goes_on(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "test")
    with spawn(Options()) as server:
        model = {"name": "anthropic", "model": "claude-sonnet-5", "base_url": server.url}
        paid = dataclasses.replace(bench, task="tldr", episodes=2, samples=1, provider=model)
        first = dataclasses.replace(paid, budget=0.05)
        with pytest.raises(SystemExit, match="larger --budget goes on"):
            play([first], range(9), ["off"])
        spent = float(server.bill()["usd"])
        assert 0.02 < spent <= 0.05
        paid.test("off", 0)
        assert float(server.bill()["usd"]) < spent + 0.05


@pytest.mark.slow
def test_the_dry_run_prices_every_contestant(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    claude = dataclasses.replace(
        bench, task="tldr", provider={"name": "anthropic", "model": "claude-sonnet-5"}
    )
    rows = [
        row.strip("| ").split(" | ")
        for row in forecast(plans([claude], [claude]), 2, [*PEERS]).splitlines()
    ]
    usd = {row[1]: float(row[3]) for row in rows if row[0] == "tldr"}
    assert usd["mipro, training"] > usd["ours, training"] > 0.0
    assert usd["mipro, test"] > usd["off, test"] > usd["headroom"] > 0.0


def test_keys_of_all_runs_price_an_unknown_model_and_stay_in_a_test(bench: Bench) -> None:
    sets = {"prices": {"mine": {"input": 1.0, "output": 2.0}}, "judge": {"repeats": 1}}
    own = dataclasses.replace(bench, provider={"name": "openai", "model": "mine"}, sets=sets)
    for config in (own.training(0), own.testing(0)):
        assert config["prices"] == sets["prices"]
        assert config["judge"]["repeats"] == 1
    assert own.testing(0)["judge"]["enabled"] is False
    assert "prices" not in bench.training(0)


@pytest.mark.slow
@pytest.mark.parametrize(("name", "calls"), [("gepa", 120), ("bootstrap", 180), ("mipro", 240)])
def test_a_real_peer_evaluates_proposes_and_stops_at_the_calls(
    name: str, calls: int, config: RunConfig, tmp_path: Path
) -> None:
    environment, *rest = PEERS[name]
    python = ROOT / ".envs" / environment / "bin" / "python"
    if not python.exists():
        pytest.skip(f".envs/{environment} is made by the benchmarks")
    found = optimise(config, tmp_path / name, calls, [str(python), "-m", *rest])
    purposes = {row.purpose for row in found.usage}
    assert purposes == ({"trial"} if name == "bootstrap" else {"trial", "distil"})
    assert calls - 10 < calls_of(found.usage) <= calls
    team = {spec.role: spec.system_prompt for spec in load_task("code_review").agents}
    assert found.kept[0].prompts == team
    assert 0.0 < found.kept[0].dev < 1.0  # is_even alone
