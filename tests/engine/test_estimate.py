"""The dry run: ordered, bounded by a real maximum, without a network and without a key."""

from __future__ import annotations

import asyncio
import json
import os
import shutil
import socket
from collections import Counter
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import orchestry
from orchestry.backends.library import Behavior, Library, to_yaml
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import ConfigError
from orchestry.engine.estimate import Dollars, Estimate, _dollars, _range, estimate
from orchestry.engine.lengths import Measured, measured
from orchestry.engine.run import prepare
from orchestry.store.journal import Reserved

ROOT = Path(__file__).parents[2]
SHELVES = (ROOT / "tests" / "fixtures" / "tasks", ROOT / "benchmarks" / "server" / "tasks")
FOLDERS = f"task_path=[{SHELVES[0]}, {SHELVES[1]}]"
BASE = ("task=words", FOLDERS, "provider.name=fake", "episodes=3", "budget.usd=null")
PRICED = ("prices.fake-1.input=1", "prices.fake-1.output=5")
CLAUDE = ("provider.name=anthropic", "provider.model=claude-sonnet-5")
JUDGED = ("judge.enabled=true", "behaviors.enabled=false")
NO_WAIT = ("retry.base_s=0", "provider.fake.fault_rate=0.3", "provider.fake.faults=[drop]")


def config(*sets: str) -> RunConfig:
    return resolve([], [*BASE, *PRICED, *sets])


LEARNING = ("judge.enabled=true", "behaviors.enabled=true", "behaviors.every=3")
SETTINGS = st.fixed_dictionaries(
    {
        "task": st.sampled_from(["words", "relay", "duet"]),
        "episodes": st.integers(1, 7),
        "search.k_samples": st.integers(1, 5),
        "search.beam_width": st.integers(1, 4),
        "search.strategy": st.sampled_from(["beam", "best_of_n", "single"]),
        "search.joint": st.sampled_from(["aligned", "cross"]),
        "search.exploration": st.sampled_from([0.0, 0.5]),
        "sampling.max_tokens": st.sampled_from([1, 16, 400]),
        "retry.attempts": st.integers(1, 3),
        "prices.fake-1.cache_write": st.sampled_from(["null", "1.25"]),
        "judge.enabled": st.booleans(),
        "judge.when": st.sampled_from(["undecided", "always"]),
        "judge.repeats": st.integers(1, 2),
        "judge.every": st.integers(1, 3),
        "judge.max_tokens": st.sampled_from([64, 1024]),
        "credit.share": st.sampled_from([0.0, 0.5]),
        "behaviors.enabled": st.just(False),
    }
)


@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(SETTINGS)
@pytest.mark.slow
def test_percentiles_are_ordered_below_the_maximum(drawn: dict[str, Any]) -> None:
    chosen = config(*(f"{key}={value}" for key, value in drawn.items()))
    usd = estimate(chosen).cost_usd
    assert 0 < usd.p5 <= usd.expected <= usd.p95
    if drawn["task"] == "duet":  # its own rule says who acts, so that nobody knows how often
        assert usd.max is None
    else:
        assert usd.max is not None
        assert usd.p95 <= usd.max


@pytest.mark.parametrize("task", ["words", "relay"])
@pytest.mark.parametrize("strategy", ["beam", "best_of_n", "single"])
def test_no_real_run_passes_the_maximum_though_its_calls_are_lost(
    tmp_path: Path, task: str, strategy: str
) -> None:
    chosen = config(
        f"task={task}",
        f"search.strategy={strategy}",
        "search.joint=cross",
        "sampling.max_tokens=1",
        "provider.fake.output_tokens=1",
        *NO_WAIT,
    )
    run = orchestry.train(chosen, tmp_path / "run")
    top = estimate(chosen).cost_usd.max
    assert top is not None
    assert 0 < run.summary.lost_usd < run.summary.cost_usd <= top


@pytest.mark.parametrize("when", ["undecided", "always"])
@pytest.mark.slow
def test_no_real_run_passes_the_maximum_though_all_its_verdicts_are_cut(
    tmp_path: Path, when: str
) -> None:
    script = tmp_path / "verdicts.jsonl"
    script.write_text('{"agent": "judge", "text": "{", "output_tokens": 100000}', encoding="utf-8")
    chosen = config(
        *JUDGED,
        f"judge.when={when}",
        "judge.max_tokens=64",
        "judge.repeats=2",
        "judge.provider.name=fake",
        f"judge.provider.fake.script={script}",
        "judge.provider.fake.fault_rate=0.3",
        "judge.provider.fake.faults=[drop]",
        "credit.share=0.5",
        "provider.fake.output_tokens=500",
        *NO_WAIT,
    )
    run = orchestry.train(chosen, tmp_path / "run")
    top = estimate(chosen).cost_usd.max
    used = run.summary.cost_by_use
    assert top is not None
    assert run.summary.cost_usd <= top
    assert used["credit"] > 0
    assert set(run.summary.judgements) == {"malformed"}
    assert used["judge"] > 0


@pytest.mark.parametrize("task", ["words", pytest.param("duet", marks=pytest.mark.slow)])
def test_calls_of_each_purpose_are_foretold(tmp_path: Path, task: str) -> None:
    chosen = config(
        *JUDGED, f"task={task}", "judge.when=always", "credit.share=0.5", "provider.fake.faults=[]"
    )
    run = orchestry.train(chosen, tmp_path / "run")
    foretold = estimate(chosen)
    real, expected = Counter[str](), Counter[str]()
    for used in run.summary.usage:
        real[used.purpose] += used.calls
    for row in foretold.usage:
        expected[row.purpose] += round(row.calls)
    assert real.keys() == expected.keys() == {"act", "judge", "credit"}
    for purpose, calls in real.items():
        assert calls == pytest.approx(expected[purpose], rel=0.25), purpose
    assert foretold.cost_usd.p5 <= run.summary.cost_usd <= foretold.cost_usd.p95


def test_the_judge_is_priced_at_its_own_models_price() -> None:
    own = ("judge.provider.name=fake", "judge.provider.model=wise", "prices.wise.input=2")
    free = config(
        *JUDGED, *own, "prices.wise.output=3", "prices.fake-1.input=0", "prices.fake-1.output=0"
    )
    usd = {row.purpose: row.usd for row in estimate(free).usage}
    assert usd["act"] == 0
    assert usd["judge"] > 0
    top = estimate(free).cost_usd.max
    assert top is not None
    assert top > estimate(free).cost_usd.p95 > 0


@pytest.mark.slow
def test_learning_has_rows_and_no_maximum_but_the_budget() -> None:
    learns = ("behaviors.enabled=true", "behaviors.every=2", "credit.share=0.2", "episodes=6")
    found = estimate(config(*learns))
    rows = {(row.agent, row.purpose): row for row in found.usage}
    assert {purpose for _, purpose in rows} == {"act", "credit", "distil", "trial"}
    assert all(rows[agent, "trial"].usd > 0 for agent in ("writer", "reviewer", "refactorer"))
    assert 0 < sum(row.calls for (_, purpose), row in rows.items() if purpose == "distil") <= 12
    assert found.cost_usd.max is None


@pytest.mark.slow
def test_calls_of_runs_that_learn_are_foretold(tmp_path: Path) -> None:
    real, expected = Counter[str](), Counter[str]()
    for task in ("words", "relay", "duet"):
        chosen = config(*LEARNING, f"task={task}", "episodes=30", "behaviors.share=4")
        run, foretold = orchestry.train(chosen, tmp_path / task), estimate(chosen)
        for used in run.summary.usage:
            real[used.purpose] += used.calls
        for row in foretold.usage:
            expected[row.purpose] += round(row.calls)
        assert foretold.cost_usd.p5 <= run.summary.cost_usd <= foretold.cost_usd.p95
    for purpose, within in {"act": 0.1, "credit": 0.1, "distil": 0.3, "trial": 0.25}.items():
        assert expected[purpose] == pytest.approx(real[purpose], rel=within), purpose


def test_a_librarys_behaviours_are_tested_though_nothing_can_be_contrasted(tmp_path: Path) -> None:
    source = tmp_path / "library.yaml"
    learned = Behavior(agent="writer", text="Say it in verse.", why="", status="accepted")
    source.write_text(to_yaml(Library(task="words", model="fake-1", behaviors=(learned,))))
    alone = ("search.strategy=single", "behaviors.enabled=true", "behaviors.every=1")
    none, some = (
        {row.purpose for row in estimate(config(*alone, *sets)).usage}
        for sets in ((), (f"behaviors.from={source}",))
    )
    assert none == {"act"}
    assert some == {"act", "trial"}


def test_nobody_judges_where_nothing_is_pruned() -> None:
    idle, always = (
        estimate(config(*JUDGED, "search.strategy=best_of_n", f"judge.when={when}"))
        for when in ("undecided", "always")
    )
    assert {row.purpose for row in idle.usage} == {"act"}
    assert {row.purpose for row in always.usage} == {"act", "judge"}


def test_a_run_too_short_to_learn_has_its_maximum() -> None:
    found = estimate(config("behaviors.enabled=true", "behaviors.every=5", "episodes=4"))
    assert found.cost_usd.max is not None
    assert "trial" not in {row.purpose for row in found.usage}


def test_a_shared_prompt_is_simulated_as_written_once_and_read_after() -> None:
    long = "agents.writer.system_prompt=" + "rules " * 4000
    rows = {row.agent: row for row in estimate(config(*CLAUDE, long), environ={}).usage}
    price = prepare(config(*CLAUDE, long), environ={}, need_key=False).backend.prices
    per_call = rows["writer"].input_tokens / rows["writer"].calls
    plain = price.worst("claude-sonnet-5", round(per_call), 0, shared=False)
    assert rows["writer"].usd < 0.75 * plain * rows["writer"].calls


def test_the_cap_is_the_maximum_and_runs_that_meet_it_stop_just_below() -> None:
    free = estimate(config()).cost_usd
    cap = free.p5 / 2
    usd = estimate(config(f"budget.usd={cap}")).cost_usd
    assert usd.max == cap
    assert 0 < usd.p5 < usd.expected <= usd.p95 <= cap


def test_the_mean_lies_between_the_percentiles_though_one_rehearsal_is_odd() -> None:
    low, high = _range([1.0] * 6 + [900.0])
    assert low <= 1.0
    assert high >= 900.0
    assert _range([0.0, 0.0]) == (0.0, 0.0)
    assert _range([0.0, 1.0, 2.0])[0] == 0.0


def test_no_percentile_is_above_the_maximum() -> None:
    free, odd = (1.0, 2.0, 3.0), (1.0, 9.0, 3.0)
    assert _dollars(free, 0.1, 5.0, 2.5) == Dollars(p5=1.0, expected=2.0, p95=2.5, max=2.5)
    assert _dollars(free, 0.1, 3.0, 1.5) == Dollars(p5=1.0, expected=1.5, p95=1.5, max=1.5)
    assert _dollars(free, 0.1, 0.5, None) == Dollars(p5=0.4, expected=0.5, p95=0.5, max=0.5)
    assert _dollars(free, 0.7, 0.5, None).p5 == 0.0, "not even one call may fit"
    assert _dollars(odd, 0.1, None, None) == Dollars(p5=1.0, expected=3.0, p95=3.0, max=None)


def test_a_budget_that_is_enough_is_in_whole_cents_and_does_not_depend_on_the_budget() -> None:
    free, capped = estimate(config()), estimate(config("budget.usd=0.000001"))
    assert capped.cost_usd.max == 0.000001
    assert capped.enough_usd == free.enough_usd == round(free.enough_usd, 2)
    assert free.cost_usd.p95 < free.enough_usd < free.cost_usd.p95 + 0.02


def test_an_estimate_uses_no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbidden(*args: object, **kwargs: object) -> None:
        raise AssertionError("the dry run used the network")

    chosen = config(*CLAUDE)  # judges and learns
    monkeypatch.setattr(socket.socket, "connect", forbidden)
    monkeypatch.setattr(socket.socket, "connect_ex", forbidden)
    monkeypatch.setattr(socket, "getaddrinfo", forbidden)
    assert estimate(chosen, environ={}).cost_usd.expected > 0


def test_an_estimate_needs_no_key_but_a_known_model() -> None:
    assert estimate(config(*CLAUDE), environ={}).provider == "anthropic"
    with pytest.raises(ConfigError, match="price for model"):
        estimate(config("provider.name=anthropic", "provider.model=claude-nonesuch-9"), environ={})


def test_an_estimate_works_inside_a_running_loop() -> None:
    async def notebook() -> Estimate:
        return estimate(config())

    assert asyncio.run(notebook()) == estimate(config())


def test_the_json_has_the_shape_of_the_design() -> None:
    found = json.loads(estimate(config()).model_dump_json())
    assert {"calls", "input_tokens", "output_tokens", "cost_usd"} <= found.keys()
    assert list(found["cost_usd"]) == ["p5", "expected", "p95", "max"]
    assert {row["agent"] for row in found["usage"]} == {"writer", "reviewer", "refactorer"}
    assert sum(row["calls"] for row in found["usage"]) == pytest.approx(found["calls"], abs=1)


def test_the_fakes_own_settings_are_not_read() -> None:
    told = config("provider.fake.output_tokens=3", "provider.fake.fault_rate=0.9")
    assert estimate(told).cost_usd == estimate(config()).cost_usd


def test_free_models_cost_nothing() -> None:
    usd = estimate(resolve([], BASE)).cost_usd
    assert usd.p5 == usd.expected == usd.p95 == usd.max == 0.0


# --- earlier runs ---------------------------------------------------------------------------------

DEAR = ("prices.fake-2.input=1", "prices.fake-2.output=5")
TALK = ("sampling.max_tokens=2000", "search.k_samples=2")


def test_an_earlier_run_of_the_model_narrows_the_range(tmp_path: Path) -> None:
    """Its answers are a twentieth of what max_tokens allows, which nobody would guess."""
    chosen = config(*TALK, "provider.fake.output_tokens=100")
    orchestry.train(chosen, tmp_path / "runs" / "first")
    alone, after = estimate(chosen), estimate(chosen, runs=[tmp_path / "runs"])
    real = orchestry.train(config(*TALK, "provider.fake.output_tokens=100", "seed=1"), tmp_path)
    assert (alone.earlier_runs, after.earlier_runs) == (0, 1)
    assert alone.cost_usd.p5 > real.summary.cost_usd
    assert after.cost_usd.p5 <= real.summary.cost_usd <= after.cost_usd.p95
    assert after.cost_usd.p95 < 3 * after.cost_usd.p5
    assert 3 * after.cost_usd.p5 < alone.cost_usd.p95


def test_a_run_of_another_task_says_less_and_one_of_another_model_nothing(tmp_path: Path) -> None:
    talk = (*TALK, "provider.fake.output_tokens=100")
    orchestry.train(config(*talk), tmp_path / "runs" / "first")
    own, task, model = (
        estimate(config(*talk, *sets), runs=[tmp_path / "runs"])
        for sets in ((), ("task=relay",), ("provider.model=fake-2", *DEAR))
    )
    widths = [one.cost_usd.p95 / one.cost_usd.p5 for one in (own, task)]
    assert widths[0] < widths[1] < 4
    assert (task.earlier_runs, model.earlier_runs) == (1, 0)


def test_answers_that_were_cut_may_be_longer_where_they_may(tmp_path: Path) -> None:
    cut = ("sampling.max_tokens=20", "provider.fake.output_tokens=400", "search.k_samples=2")
    orchestry.train(config(*cut), tmp_path / "runs" / "first")
    found = estimate(config("sampling.max_tokens=1000"), runs=[tmp_path / "runs"])
    acts = [row for row in found.usage if row.purpose == "act"]
    assert all(60 < row.output_tokens / row.calls < 600 for row in acts)


@pytest.mark.slow
def test_lengths_of_verdicts_and_rules_are_from_earlier_runs_too(tmp_path: Path) -> None:
    script = tmp_path / "critic.jsonl"
    verdict = {"feedback": "so", "quality": 5, "collaboration": 5, "efficiency": 5}
    text = json.dumps(dict.fromkeys("AB", verdict))
    lines = [{"agent": "judge", "text": text, "output_tokens": 800}]
    rules = json.dumps({"behaviors": [{"why": "so", "text": "Be brief."}]})
    roles = ("writer", "reviewer", "refactorer")
    lines += [{"agent": role, "text": rules, "output_tokens": 700} for role in roles]
    script.write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    critic = ("judge.provider.name=fake", f"judge.provider.fake.script={script}")
    wise = ("judge.provider.model=wise", "prices.wise.input=1", "prices.wise.output=5")
    chosen = config(*LEARNING, *critic, *wise, "judge.when=always", "search.k_samples=2")
    run = orchestry.train(chosen, tmp_path / "runs" / "first")
    assert {row.purpose for row in run.summary.usage} >= {"judge", "distil"}
    known = measured([tmp_path / "runs"], "words", {"wise"}, print)
    assert {one.tokens for one in known.lengths["wise", "judge", "judge"]} == {800}
    assert {one.tokens for one in known.lengths["wise", "distil"]} == {700}
    none, some = (estimate(chosen, runs=runs) for runs in ([], [tmp_path / "runs"]))
    short, long = (
        next(row.output_tokens / row.calls for row in one.usage if row.purpose == "judge")
        for one in (none, some)
    )
    assert short < 200
    assert 500 < long <= 1024


def test_a_check_of_a_judge_is_no_earlier_run(tmp_path: Path) -> None:
    folder, notes = tmp_path / "check", list[str]()
    folder.mkdir()
    (folder / "journal.jsonl").write_text("")
    assert measured([tmp_path], "words", {"fake-1"}, notes.append).runs == 0
    assert notes == []


def test_an_earlier_run_that_is_damaged_is_named_and_not_used(tmp_path: Path) -> None:
    first, notes = tmp_path / "runs" / "first", list[str]()
    orchestry.train(config(), first)
    journal = first / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().replace(b'"output_tokens":', b'"output_tokens":1', 1))
    found = estimate(config(), {}, notes.append, [tmp_path / "runs", tmp_path / "absent"])
    assert found.earlier_runs == 0
    assert len(notes) == 1
    assert str(first) in notes[0]
    assert "damaged" in notes[0]


def judged(found: Estimate) -> float:
    """Calls of the judge."""
    return sum(row.calls for row in found.usage if row.purpose == "judge")


def test_a_judge_is_foretold_though_no_earlier_run_tells_who_ties() -> None:
    """A reviewer of code_review changes no score, so that 20 of its sets are judged."""
    chosen = config("task=code_review", "episodes=5", *JUDGED)
    assert 10 < judged(estimate(chosen)) < 40


def test_a_judge_that_is_asked_less_often_is_foretold_and_bounded_so() -> None:
    sets = ("task=words", "episodes=9", *JUDGED, "judge.when=always", "credit.share=0")
    always, third = (estimate(config(*sets, f"judge.every={n}")) for n in (1, 3))
    assert judged(third) == pytest.approx(judged(always) / 3, rel=0.05)
    assert always.cost_usd.max is not None
    assert third.cost_usd.max is not None
    assert third.cost_usd.max < always.cost_usd.max


def test_ties_of_each_agent_are_from_earlier_runs_of_the_task(tmp_path: Path) -> None:
    """A reviewer of `words` changes no score; its writers' scores differ."""
    sets = (*JUDGED, "sampling.max_tokens=2000", "episodes=6")
    orchestry.train(config(*sets), tmp_path / "runs" / "first")
    real = orchestry.train(config(*sets, "seed=1"), tmp_path / "real").summary.usage
    calls = sum(used.calls for used in real if used.purpose == "judge")
    known = measured([tmp_path / "runs"], "words", {"fake-1"}, print)
    assert known.tying("reviewer") == 1.0
    writer = known.tying("writer")
    assert writer is not None
    assert writer < 0.3
    assert Measured().tying("reviewer") is None
    found = estimate(config(*sets), runs=[tmp_path / "runs"])
    assert judged(found) == pytest.approx(calls, rel=0.3)


def test_a_pipe_in_the_place_of_episodes_tells_nothing(tmp_path: Path) -> None:
    orchestry.train(config(), tmp_path / "runs" / "first")
    episodes = tmp_path / "runs" / "first" / "episodes.jsonl"
    episodes.unlink()
    os.mkfifo(episodes)
    assert measured([tmp_path / "runs"], "words", {"fake-1"}, print).tying("reviewer") is None


def test_a_run_whose_episodes_are_damaged_is_named_in_one_line(tmp_path: Path) -> None:
    orchestry.train(config(), tmp_path / "runs" / "first")
    (tmp_path / "runs" / "first" / "episodes.jsonl").write_text('{"episode": "x"}\n')
    notes = list[str]()
    assert measured([tmp_path / "runs"], "words", {"fake-1"}, notes.append).runs == 0
    (note,) = notes
    assert "episodes.jsonl is damaged" in note
    assert "\n" not in note


def test_only_regular_files_are_read_as_earlier_runs(tmp_path: Path) -> None:
    """A pipe would be waited for."""
    for name, piped in (("journal", "journal.jsonl"), ("config", "config.yaml")):
        folder = tmp_path / name
        folder.mkdir()
        for file in ("journal.jsonl", "config.yaml"):
            (folder / file).write_text("")
        (folder / piped).unlink()
        os.mkfifo(folder / piped)
    found = list[int]()

    def read() -> None:
        found.append(measured([tmp_path], "words", {"fake-1"}, print).runs)

    reader = Thread(target=read, daemon=True)
    reader.start()
    reader.join(timeout=10)
    assert found == [0]


def test_a_run_that_vanishes_meanwhile_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, notes = tmp_path / "gone", list[str]()

    def vanish(path: Path) -> bool:
        shutil.rmtree(folder, ignore_errors=True)
        return True

    folder.mkdir()
    for file in ("journal.jsonl", "config.yaml"):
        (folder / file).write_text("")
    for name in ("exists", "is_file"):
        monkeypatch.setattr(Path, name, vanish)
    assert measured([tmp_path], "words", {"fake-1"}, notes.append).runs == 0
    (note,) = notes
    assert f"{folder} tells the dry run nothing" in note


# --- the maximum ----------------------------------------------------------------------------------


def test_the_maximum_is_near_where_a_run_leaves_nothing_to_chance(tmp_path: Path) -> None:
    sets = ("sampling.max_tokens=1", "search.strategy=single", "retry.attempts=1", "task=relay")
    chosen = config(*sets)
    run = orchestry.train(chosen, tmp_path / "run")
    top = estimate(chosen).cost_usd.max
    assert top is not None
    reserved = [event.usd for event in run.events if isinstance(event, Reserved)]
    assert run.summary.cost_usd <= top <= 2 * sum(reserved)


def test_the_maximum_has_all_verdicts_and_all_replays() -> None:
    base = ("task=relay", "search.k_samples=4", "episodes=2", "behaviors.enabled=false")
    off, on, twice, replays, idle = (
        estimate(config(*base, *sets)).cost_usd.max or 0.0
        for sets in (
            ("judge.enabled=false",),
            ("judge.enabled=true", "judge.repeats=1"),
            ("judge.enabled=true", "judge.repeats=2"),
            ("judge.enabled=false", "credit.share=1"),
            ("judge.enabled=true", "search.strategy=single"),
        )
    )
    assert 0 < off < on
    assert twice - off == pytest.approx(2 * (on - off), rel=1e-3)
    assert 2 * off < replays
    alone = estimate(config(*base, "judge.enabled=false", "search.strategy=single")).cost_usd.max
    assert idle == alone  # a chain has no siblings


ODD = """
from orchestry import AgentSpec, Problem, TeamTask, Transcript

class Odd(TeamTask):
    name = "odd"
    agents = (AgentSpec(role="solo", goal="Say FINISHED once you are."),)

    def problems(self, split):
        return [Problem(id=f"p{n}", prompt="go " * 40 * (n + 1), split=split) for n in range(3)]

    {body}

    async def evaluate(self, state, tools):
        return self.score(quality=0.5)
"""


@pytest.mark.parametrize(
    "body",
    [
        "def to_act(self, s): return ('solo',) if not s.said or 'FIN' in s.said[-1][1] else ()",
        "rounds = 2\n    def reset(self, p, s): return Transcript(p, (('solo', 'a' * (s % 7)),))",
        "def told(self, state, score): return Transcript(state.problem, state.said[:5])",
    ],
)
def test_where_the_answers_may_decide_the_length_only_a_budget_is_a_maximum(
    tmp_path: Path, body: str
) -> None:
    folder = tmp_path / "tasks" / "odd"
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(ODD.replace("{body}", body))
    sets = ("task=odd", f"task_path=[{folder.parent}]", "sampling.max_tokens=16")
    usd = estimate(config(*sets)).cost_usd
    assert usd.max is None
    assert 0 < usd.p5 <= usd.expected <= usd.p95
    capped = estimate(config(*sets, "budget.usd=0.5")).cost_usd
    assert capped.max == 0.5
    assert capped.p95 <= 0.5


PAGES = """
from orchestry import AgentSpec, Problem, TeamTask

class Pages(TeamTask):
    name = "pages"
    agents = (AgentSpec(role="finder", goal="Name a page."), AgentSpec(role="reader", goal="Read."))

    def problems(self, split):
        return [Problem(id="only", prompt="Which page?", split=split)]

    def observe(self, state, agent):
        named = agent == "reader" and "PAGE 1" in state.last("finder")
        return state.problem.prompt + " long page" * 5000 * named

    async def evaluate(self, state, tools):
        return self.score(quality=0.5)
"""


def test_a_page_that_an_answer_names_passes_no_maximum(tmp_path: Path) -> None:
    """`observe` shows it to the next agent, and no made-up answer names it."""
    folder, script = tmp_path / "tasks" / "pages", tmp_path / "script.jsonl"
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(PAGES)
    script.write_text('{"agent": "*", "text": "PAGE 1"}', encoding="utf-8")
    shelf, scripted = f"task_path=[{folder.parent}]", f"provider.fake.script={script}"
    sets = ("task=pages", shelf, scripted, "search.k_samples=2", "sampling.max_tokens=64")
    run = orchestry.train(config(*sets), tmp_path / "run")
    top = estimate(config(*sets)).cost_usd.max
    assert run.summary.cost_usd > 0
    assert top is None or run.summary.cost_usd <= top


def test_a_million_episodes_cost_no_more_time_than_a_thousand() -> None:
    few, many = estimate(config("episodes=1000")), estimate(config("episodes=1000000"))
    assert few.cost_usd.max is not None
    assert many.cost_usd.max is not None
    assert many.cost_usd.max == pytest.approx(1000 * few.cost_usd.max, rel=1e-9)
    assert many.cost_usd.p95 < many.cost_usd.max


def test_a_judge_that_is_paid_leaves_no_maximum_of_nothing() -> None:
    """Though no rehearsal may have met a tie, of which it would be asked."""
    own = ("judge.provider.name=fake", "judge.provider.model=wise", "task=duet")
    paid = ("prices.wise.input=2", "prices.wise.output=3")
    base = [*BASE, "judge.enabled=true", "behaviors.enabled=false", *own]
    assert estimate(resolve([], base)).cost_usd.max == 0.0
    assert estimate(resolve([], [*base, *paid])).cost_usd.max is None
