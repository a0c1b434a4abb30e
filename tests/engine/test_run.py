"""Whole runs on the fake provider: artefacts, kills, budgets, bad tasks, and the Python calls."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import FakeConfig, RunConfig, resolve
from orchestry.core.errors import ConfigError, LockedError, PromptTooLong, ProviderError, StoreError
from orchestry.core.types import Completion, Request
from orchestry.engine.estimate import estimate
from orchestry.engine.evaluate import held_out_config
from orchestry.engine.run import prepare, resume, run_plan
from orchestry.engine.session import Silent
from orchestry.models.fake import FakeProvider
from orchestry.models.gateway import Gateway
from orchestry.store.journal import Answered, Reserved, read
from orchestry.store.run import Store
from orchestry.task.setup import _counted
from tests.journals import keep_events

TASKS = Path(__file__).parents[1] / "fixtures" / "tasks"
PRICED = ("prices.fake-1.input=1", "prices.fake-1.output=5")


BASE = ("task=words", f"task_path=[{TASKS}]", "provider.name=fake", "episodes=6")


def config(*sets: str, **flags: Any) -> RunConfig:
    return resolve([], [*BASE, *sets], flags)


def artefacts(folder: Path) -> dict[str, Any]:
    """All of a run that must not depend on when and how often it was interrupted."""
    summary = json.loads((folder / "summary.json").read_text())
    del summary["seconds"], summary["run_dir"]
    names = ("config.yaml", "episodes.jsonl", "metrics.jsonl", "rewards.csv")
    return {"summary": summary, **{name: (folder / name).read_text() for name in names}}


def test_a_run_leaves_every_file(tmp_path: Path) -> None:
    run = orchestry.train(config(*PRICED), tmp_path / "run")
    assert len(run.episodes) == 6
    assert run.summary.stopped == "done"
    assert run.summary.calls == sum(episode.calls for episode in run.episodes) == 6 * 20
    assert run.summary.cost_usd == pytest.approx(sum(episode.usd for episode in run.episodes))
    assert run.summary.mean_reward == pytest.approx(sum(run.rewards) / 6)
    assert run.best is not None
    assert run.best.reward == max(run.best_of_k)
    rows = (tmp_path / "run" / "rewards.csv").read_text().splitlines()
    assert rows[0] == "episode,total,quality,best_of_k"
    assert [float(row.split(",")[1]) for row in rows[1:]] == run.rewards
    assert [float(row.split(",")[3]) for row in rows[1:]] == run.best_of_k
    metrics = [
        json.loads(row) for row in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()
    ]
    assert [row["episode"] for row in metrics] == list(range(6))
    assert metrics[-1]["best_reward"] == run.summary.best_reward
    manifest = json.loads((tmp_path / "run" / "manifest.json").read_text())
    assert manifest["sandbox"]
    assert manifest["packages"]["genai-prices"] == manifest["prices"]


def test_the_same_seed_gives_the_same_run_and_another_seed_another(tmp_path: Path) -> None:
    for name, seed in (("a", 3), ("b", 3), ("c", 4)):
        orchestry.train(config(seed=seed), tmp_path / name)
    assert artefacts(tmp_path / "a") == artefacts(tmp_path / "b")
    assert artefacts(tmp_path / "a") != artefacts(tmp_path / "c")


def test_a_run_does_not_depend_on_its_concurrency(tmp_path: Path) -> None:
    slow = ("provider.fake.latency_s=0.001", "provider.fake.latency_sigma=1")
    orchestry.train(config(*slow), tmp_path / "wide")
    narrow = config(*slow, "search.concurrency=1", "search.episodes_in_flight=1")
    orchestry.train(narrow, tmp_path / "narrow")
    first, second = artefacts(tmp_path / "wide"), artefacts(tmp_path / "narrow")
    assert first.pop("config.yaml") != second.pop("config.yaml")
    assert first == second


def test_every_problem_comes_once_before_any_comes_again() -> None:
    plan = prepare(config())
    ids = [plan.problem(episode).id for episode in range(10)]
    assert len(set(ids[:5])) == len(set(ids[5:])) == 5


def test_passes_play_every_train_problem_so_often(tmp_path: Path) -> None:
    run = orchestry.train(config("passes=2"), tmp_path / "run")
    assert sorted(one.problem for one in run.episodes) == sorted(
        2 * [f"train-{n}" for n in range(5)]
    )
    assert (run.config["episodes"], run.config["passes"]) == (10, None)
    assert run.summary.episodes_asked == 10
    again = resume(run.folder, {"passes": 3})
    assert len(again.episodes) == 15
    assert len(resume(run.folder, {"episodes": 16}).episodes) == 16


def test_passes_have_a_limit_and_hold_for_the_run_alone() -> None:
    assert estimate(config("passes=3")).episodes == 15
    held = held_out_config(config("passes=3").plain(), "dev", None, None, 2)
    assert prepare(held, held_out=True).config.episodes == 2
    with pytest.raises(ConfigError, match=r"passes=10000 over 200 train problems.*2,000,000 epis"):
        _counted(config("passes=10000"), 200)


def test_a_paced_run_plays_the_same_and_a_resume_may_change_the_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    began, keep = list[int](), Gateway.keep_pace

    async def counted(self: Gateway) -> None:
        await keep(self)
        began.append(1)

    monkeypatch.setattr(Gateway, "keep_pace", counted)
    run = orchestry.train(config("pace=0.01"), tmp_path / "paced")
    assert len(began) == 6
    plain = orchestry.train(config(), tmp_path / "plain")
    assert [one.answers(one.best) for one in run.episodes] == [
        one.answers(one.best) for one in plain.episodes
    ]
    assert len(resume(run.folder, {"pace": 0, "episodes": 7}).episodes) == 7
    assert estimate(config("pace=2")).paced_s == 10


def test_a_resume_asks_whom_the_run_asked(tmp_path: Path) -> None:
    chosen = prepare(config("provider.name=auto"), environ={}).config.provider
    assert chosen.name == "embedded"
    assert chosen.model == "SmolLM2-135M-Instruct-Q4_1"
    environ = {"ANTHROPIC_API_KEY": "k", "ANTHROPIC_BASE_URL": "http://127.0.0.1:9"}
    chosen = prepare(config("provider.name=auto"), environ=environ).config.provider
    assert (chosen.name, chosen.base_url) == ("anthropic", "http://127.0.0.1:9")
    environ["ANTHROPIC_BASE_URL"] = "http://me:secret@127.0.0.1:9"
    assert prepare(config("provider.name=auto"), environ=environ).config.provider.base_url is None


def killed_run(folder: Path, seed: int, *sets: str) -> int:
    """A run in a process of its own, killed at a random moment; returns its exit code."""
    args = [sys.executable, "-m", "orchestry", "run", "--task", "words", "--provider", "fake"]
    args += ["--task-path", str(TASKS), "--episodes", "6", "--run-dir", str(folder)]
    for item in sets:
        args += ["--set", item]
    process = subprocess.Popen(args, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    begun = folder / "config.yaml"  # the journal is there a moment before
    while not begun.exists() and process.poll() is None:
        time.sleep(0.005)
    time.sleep(random.Random(seed).uniform(0, 0.5))
    process.send_signal(signal.SIGKILL)
    return process.wait()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.slow
def test_kill_and_resume_equals_an_uninterrupted_run(tmp_path: Path, seed: int) -> None:
    faults = "provider.fake.faults=['429', '529']"  # a resume may meet one twice: unbilled ones
    slow = "provider.fake.latency_s=0.05"
    sets = (*PRICED, slow, "provider.fake.fault_rate=0.1", faults)
    whole = orchestry.train(config(*sets), tmp_path / "whole")
    folder = tmp_path / "killed"
    assert killed_run(folder, seed, *sets) == -signal.SIGKILL
    before = [event for event in read(folder / "journal.jsonl") if isinstance(event, Answered)]
    resume(folder)
    after = [event for event in read(folder / "journal.jsonl") if isinstance(event, Answered)]
    assert artefacts(folder) == artefacts(whole.folder)
    assert after[: len(before)] == before
    assert len({event.key for event in after}) == len(after), "an answer was paid twice"


def test_a_kill_in_the_middle_of_a_commit_is_mended(tmp_path: Path) -> None:
    whole = orchestry.train(config(), tmp_path / "whole")
    expected = artefacts(whole.folder)
    for name in ("episodes.jsonl", "metrics.jsonl", "rewards.csv"):
        path = whole.folder / name
        os.truncate(path, path.stat().st_size - 7)
    keep_events(whole.folder, lambda e: e.kind != "stopped" and getattr(e, "episode", 0) != 5)
    resume(whole.folder)
    assert artefacts(whole.folder) == expected


def kill_at(mark: bytes, folder: Path, *args: str) -> None:
    """A command in a process of its own, killed once the journal of `folder` holds `mark`."""
    process = subprocess.Popen(
        [sys.executable, "-m", "orchestry", *args],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    journal, deadline = folder / "journal.jsonl", time.monotonic() + 60
    while not (journal.exists() and mark in journal.read_bytes()):
        assert process.poll() is None
        assert time.monotonic() < deadline
        time.sleep(0.005)
    process.kill()
    assert process.wait() == -signal.SIGKILL


@pytest.mark.slow
def test_a_first_episode_torn_by_a_kill_never_spoils_a_later_resume(tmp_path: Path) -> None:
    slow = ("provider.fake.latency_s=0.05", "search.episodes_in_flight=1")
    whole = orchestry.train(config(*slow), tmp_path / "whole")
    folder = tmp_path / "killed"
    sets = [word for item in (*BASE, *slow) for word in ("--set", item)]
    kill_at(b'"answered"', folder, "run", "--run-dir", str(folder), *sets)
    assert b'"committed"' not in (folder / "journal.jsonl").read_bytes()
    line = (whole.folder / "episodes.jsonl").read_bytes().partition(b"\n")[0]
    (folder / "episodes.jsonl").write_bytes(line[:100])
    kill_at(b'"committed","episode":1', folder, "resume", str(folder))
    resume(folder)
    assert artefacts(folder) == artefacts(whole.folder)


def test_a_lost_committed_episode_is_named_and_played_again(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    expected, path = artefacts(run.folder), run.folder / "episodes.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:3]))
    with pytest.raises(StoreError, match="lacks episode 3"):
        _ = orchestry.load_run(run.folder).episodes
    resume(run.folder)
    assert artefacts(run.folder) == expected


def test_a_resume_keeps_what_the_first_process_ran_on(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    path = run.folder / "manifest.json"
    first = path.read_text()
    resume(run.folder)
    assert path.read_text() == first
    older = {**json.loads(first), "python": "3.10.0"}
    path.write_text(json.dumps(older))
    resume(run.folder)
    found = json.loads(path.read_text())
    (later,) = found.pop("resumed")
    assert found == older
    assert later == {"at": later["at"], "python": json.loads(first)["python"]}


def test_one_writer_at_a_time(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    with Store(run.folder), pytest.raises(LockedError, match="being written by another process"):
        resume(run.folder)


def test_a_stop_at_the_budget_keeps_results_and_goes_on(tmp_path: Path) -> None:
    sets = (*PRICED, "search.episodes_in_flight=1", "search.concurrency=2")
    whole = orchestry.train(config(*sets), tmp_path / "whole")
    cap = whole.summary.cost_usd * 0.6
    run = orchestry.train(config(*sets, **{"budget.usd": cap}), tmp_path / "capped")
    assert run.summary.stopped == "budget"
    assert 0 < len(run.episodes) < 6
    assert run.summary.cost_usd <= cap
    assert resume(run.folder).summary.stopped == "budget"
    done = resume(run.folder, {"budget": {"usd": 5.0}})
    assert done.summary.stopped == "done"
    assert done.rewards == whole.rewards
    assert done.summary.cost_usd == pytest.approx(whole.summary.cost_usd)


def test_no_reservation_passes_the_cap_at_any_time(tmp_path: Path) -> None:
    run = orchestry.train(config(*PRICED, **{"budget.usd": 0.02}), tmp_path / "run")
    opened: dict[int, float] = {}
    spent = 0.0
    for event in read(run.folder / "journal.jsonl"):
        if isinstance(event, Reserved):
            opened[event.call] = event.usd
        elif isinstance(event, Answered) and event.call is not None:
            del opened[event.call]
            spent += event.completion.usd
        assert spent + sum(opened.values()) <= 0.02 + 1e-9


def test_a_failing_provider_fails_the_run_and_keeps_what_arrived(tmp_path: Path) -> None:
    script = tmp_path / "script.jsonl"
    script.write_text('{"agent": "writer", "text": "aaa"}\n{"agent": "reviewer", "text": "ok"}\n')
    sets = (f"provider.fake.script={script}", "search.episodes_in_flight=1")
    with pytest.raises(ProviderError, match="no line for agent 'refactorer'"):
        orchestry.train(config(*sets), tmp_path / "run")
    run = orchestry.load_run(tmp_path / "run")
    assert run.summary.stopped == "failed"
    assert run.summary.calls > 0
    with script.open("a") as file:
        file.write('{"agent": "refactorer", "text": "aaaa"}\n')
    assert resume(tmp_path / "run").summary.stopped == "done"


def test_evaluate_plays_a_held_out_split_once(tmp_path: Path) -> None:
    run = orchestry.train(config(), tmp_path / "run")
    found = orchestry.evaluate(run, "test")
    assert sorted(episode.problem for episode in found.episodes) == [f"test-{n}" for n in range(5)]
    again = orchestry.evaluate(run.folder, "test")
    assert again.rewards == found.rewards
    assert again.summary.calls == found.summary.calls


def test_a_run_works_inside_a_running_loop(tmp_path: Path) -> None:
    async def notebook() -> orchestry.store.run.Run:
        return orchestry.train(config(), tmp_path / "run")

    assert asyncio.run(notebook()).summary.stopped == "done"


@pytest.mark.parametrize(
    ("sets", "message"),
    [
        (["task=wrds"], "unknown task 'wrds': did you mean 'words'"),
        (["agents.writr.max_tokens=3"], "unknown agent of task words 'writr': did you mean"),
        (["weights.qualty=1"], "unknown reward part of words 'qualty'"),
        (["backend=local"], "no provider fake|the local regime needs torch"),
        (["provider.name=openai", "provider.base_url=http://127.0.0.1:1"], "no default model"),
        (["provider.name=recorded"], "name it in provider.recording"),
        (["provider.name=anthropic", "provider.model=claude-nonesuch-9"], "price for model"),
    ],
)
def test_bad_config_costs_nothing_and_makes_no_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, sets: list[str], message: str
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "sk-test-000")
    with pytest.raises(ConfigError, match=message):
        orchestry.train(config(*sets), tmp_path / "run")
    assert not (tmp_path / "run").exists()


def test_a_missing_key_is_named_with_the_way_round(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ANTHROPIC_API_KEY", raising=False)
    with pytest.raises(ConfigError, match="ANTHROPIC_API_KEY is not set"):
        orchestry.train(config("provider.name=anthropic"), tmp_path / "run")


def test_a_run_is_not_written_over(tmp_path: Path) -> None:
    orchestry.train(config(), tmp_path / "run")
    with pytest.raises(ConfigError, match="holds a run: `orchestry resume"):
        orchestry.train(config(), tmp_path / "run")


@pytest.mark.parametrize("name", ["none", "empty"])
def test_resume_of_no_run_is_named(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(ConfigError, match="give the directory that `orchestry run` printed"):
        resume(tmp_path / name)


def test_a_resume_takes_scores_from_the_journal(tmp_path: Path) -> None:
    """A task that would score otherwise on another day does not change what was decided."""
    tasks = tmp_path / "tasks" / "moody"
    tasks.mkdir(parents=True)
    source = (TASKS / "words" / "task.py").read_text().replace('"words"', '"moody"')
    (tasks / "task.py").write_text(source)
    sets = ("task=moody", f"task_path=[{tmp_path / 'tasks'}]")
    whole = orchestry.train(config(*sets), tmp_path / "whole")
    expected = artefacts(whole.folder)
    keep_events(whole.folder, lambda e: e.kind not in ("committed", "stopped"))
    (whole.folder / "episodes.jsonl").unlink()
    (tasks / "task.py").write_text(source.replace("% 101 / 100", "% 7 / 100"))
    resume(whole.folder, accept=True)
    assert artefacts(whole.folder) == expected


def test_a_prompt_that_no_context_holds_is_an_empty_answer(tmp_path: Path) -> None:
    """The episode goes on, one line says so, and a resume does not ask again."""
    asked = list[str]()

    class Small(FakeProvider):
        async def complete(self, request: Request, **options: Any) -> Completion:
            if request.agent == "reviewer":
                asked.append(request.agent)
                raise PromptTooLong("the prompt is too long: shorten it")
            return await super().complete(request, **options)

    plan = prepare(config("episodes=1"))
    plan.backend.provider = Small(FakeConfig(), 0)
    watch = Noted()
    run = run_plan(plan, tmp_path / "run", watch)
    assert run.summary.stopped == "done"
    assert any("reviewer's answer counts as empty" in note for note in watch.notes)
    texts = {t.agent: t.completion for n in run.episodes[0].nodes for t in n.turns}
    assert (texts["reviewer"].text, texts["reviewer"].stop) == ("", "too_long")
    count = len(asked)
    again = prepare(config("episodes=2"))
    again.backend.provider = Small(FakeConfig(), 0)
    first = [event for event in run.events if isinstance(event, Answered)]
    run_plan(again, run.folder, watch)
    events = [
        event for event in orchestry.load_run(run.folder).events if isinstance(event, Answered)
    ]
    assert events[: len(first)] == first
    assert len(asked) > count


class Noted(Silent):
    """Keeps the notes of a run."""

    def __init__(self) -> None:
        self.notes = list[str]()

    def note(self, text: str) -> None:
        self.notes.append(text)


@pytest.mark.parametrize("key", ["sampling.temperature", "agents.writer.temperature"])
def test_a_temperature_for_claude_is_refused(key: str) -> None:
    environ = {"ANTHROPIC_API_KEY": "sk-test-000"}
    with pytest.raises(ConfigError, match="Claude takes no temperature"):
        prepare(config("provider.name=anthropic", f"{key}=0.5"), environ=environ)


def test_a_run_can_be_resumed_from_another_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TASKS.parent)
    orchestry.train(config("task_path=[tasks]", "episodes=1"), tmp_path / "run")
    monkeypatch.chdir(tmp_path)
    assert len(resume("run", {"episodes": 2}).episodes) == 2
