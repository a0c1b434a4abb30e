"""The learning benchmark: the peer's connection, the equal count of calls, and what it reports."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.page import ROOT
from benchmarks.quality.learning import ARMS, Bench, results
from benchmarks.quality.learning_host import Optimised, calls_of, optimise, wall_s
from benchmarks.quality.learning_report import report
from orchestry.backends.api.library import IN_RUN, Behavior, Evidence, read_library, to_yaml
from orchestry.core.config import RunConfig, validate
from orchestry.store.journal import Answered, Event, Opened, Stopped
from orchestry.store.run import load_run

GEPA = ROOT / ".envs" / "gepa" / "bin" / "python"
CODE = "```python\ndef is_even(n):\n    return n % 2 == 0\n```"
SCRIPT = (
    {"agent": "reviewer", "text": "LGTM"},
    {"agent": "writer", "text": CODE},
    {"agent": "refactorer", "text": CODE},
    {"agent": "reflection", "text": "Here it is:\n```\nBe exact.\n```"},
)
PEER = """\
import json, sys
def ask(**message):
    print(json.dumps(message), flush=True)
    return json.loads(sys.stdin.readline())
order = json.loads(sys.stdin.readline())
first = ask(ask="play", prompts=order["prompts"], problems=["is_even", order["train"][0]])
if {dies}:
    sys.exit("died of a cold")
again = ask(ask="play", prompts=order["prompts"], problems=["is_even"])
assert again["calls"] == first["calls"], "what was asked once is free"
other = {{**order["prompts"], "writer": ask(ask="reflect", prompt="Better?")["text"]}}
rewards = [ask(ask="play", prompts=p, problems=["is_even"])["plays"][0]["reward"]
           for p in (order["prompts"], other)]
moves = first["plays"][0]["moves"]
assert "is_even" in moves["writer"]["saw"] and moves["reviewer"]["answered"] == "LGTM"
kept = [dict(prompts=order["prompts"], dev=rewards[0]), dict(prompts=other, dev=rewards[1] / 2)]
print(json.dumps(dict(ask="done", kept=kept, best=0)), flush=True)
"""


def peer(*, dies: bool = False) -> list[str]:
    return [sys.executable, "-c", PEER.format(dies=dies)]


@pytest.fixture
def provider(tmp_path: Path) -> dict[str, Any]:
    script = tmp_path / "script.jsonl"
    script.write_text("".join(json.dumps(line) + "\n" for line in SCRIPT))
    return {"name": "fake", "fake": {"script": str(script)}}


@pytest.fixture
def config(provider: dict[str, Any]) -> RunConfig:
    plain = {"behaviors": {"enabled": False}, "judge": {"enabled": False}}
    return validate({**plain, "provider": provider, "allow_unsafe_code": True})


def test_a_peer_has_its_team_played_and_paid_once(config: RunConfig, tmp_path: Path) -> None:
    found = optimise(config, tmp_path / "peer", 50, peer())
    assert [kept.dev for kept in found.kept] == [1.0, 0.5]
    assert found.winner.prompts == found.kept[0].prompts
    assert found.kept[1].prompts["writer"].endswith("Be exact.\n```")
    # two plays, a reflection, and the writer with its new prompt: the others are asked as before
    assert calls_of(found.usage) == 6 + 1 + 1
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


@pytest.mark.slow
def test_the_whole_bench_from_training_to_report(provider: dict[str, Any], tmp_path: Path) -> None:
    bench = Bench(tmp_path / "bench", episodes=3, problems=3, provider=provider, peer=peer())
    found = results(bench, [0, 1])
    assert [o.asked for o in found.optimised] == [calls_of(r.summary.usage) for r in found.trained]
    calls = {arm: found.tested[arm][0].episodes[0].calls for arm in ARMS}
    assert calls["on"] == calls["off"] == calls["best_of_n"] == calls["gepa"] == 6
    body = report(found)
    assert "a null result" in body
    assert "GEPA's best prompts are the ones it started from" in body
    for arm in ARMS.values():
        assert f"| {arm.label} |" in body
    assert [r.folder for r in results(bench, [0, 1]).trained] == [r.folder for r in found.trained]


@pytest.mark.slow
def test_an_accepted_behaviour_is_played_and_reported(
    provider: dict[str, Any], tmp_path: Path
) -> None:
    bench = Bench(tmp_path / "bench", episodes=3, problems=1, provider=provider, peer=peer())
    place = bench.train(0).folder / IN_RUN
    won = Evidence(pairs=40, lift=0.2, low=0.05, high=0.35, e_value=50.0, level=0.025)
    behavior = Behavior(agent="writer", text="Handle `[]`\nfirst.", status="accepted", evidence=won)
    other = Behavior(agent="reviewer", text="Be kind.")
    place.write_text(to_yaml(read_library(place).put(behavior).put(other)))
    found = results(bench, [0])
    system = found.tested["on"][0].episodes[0].best_node
    first = found.tested["on"][0].episodes[0].path(system.id)[0].turns[0].messages[0].content
    assert "Handle `[]`" in first
    body = report(found)
    assert "- Seed 0, accepted for the writer: `Handle '[]' first.`" in body
    lift = "+20.0 points [+5.0, +35.0] on 40 pairs, e-value 50 (40 decides)"
    assert f"| 0 | writer | rule | {lift} | accepted |" in body
    assert "the tightest interval began 15 points below its lift" in body
    assert "null result" not in body


@pytest.mark.slow
@pytest.mark.skipif(not GEPA.exists(), reason=".envs/gepa is made by the benchmarks")
def test_gepa_itself_evaluates_reflects_and_stops_at_the_calls(
    config: RunConfig, tmp_path: Path
) -> None:
    command = [str(GEPA), "-m", "benchmarks.peers.learning_gepa"]
    found = optimise(config, tmp_path / "gepa", 100, command)
    assert isinstance(found, Optimised)
    by_purpose = {row.purpose for row in found.usage}
    assert by_purpose == {"trial", "reflect"}
    assert calls_of(found.usage) >= 100
    assert 0.0 < found.kept[0].dev < 1.0  # is_even alone
