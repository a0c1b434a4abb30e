"""What one answer does to a task costs that answer's trajectory, and never the run."""

from __future__ import annotations

import asyncio
import random
import shutil
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import SandboxError, TaskFault
from orchestry.core.types import TASK_ERROR
from orchestry.engine.run import prepare, resume, run_plan
from orchestry.engine.scores import FIRST_FAULTS, KEPT
from orchestry.engine.session import Silent
from orchestry.report.tables import fault_counts
from orchestry.store.journal import HEAD, Answered, Committed, Scored, read
from orchestry.store.run import Run, load_run
from orchestry.task.guard import task_boundary
from tests.engine.test_run import BASE, artefacts
from tests.toys import Words

WHERE = ("evaluate", "total", "step", "hash", "to_act", "observe", "told")


class Notes(Silent):
    """Keeps the warnings."""

    def __init__(self) -> None:
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        if text.startswith("warning: "):
            self.warnings.append(text)


def config(where: str, *sets: str, **flags: Any) -> RunConfig:
    return resolve([], [*BASE, "task=fragile", f"options.where={where}", *sets], flags)


def failed(run: Run) -> int:
    """How many leaves the task could not score; each is worth 0 to whoever learns from it."""
    leaves = [leaf for record in run.episodes for leaf in record.leaves()]
    found = [leaf for leaf in leaves if TASK_ERROR in leaf.score.tags]
    assert {part.value for leaf in found for part in leaf.score.parts} <= {0.0}
    assert {leaf.value for leaf in found} <= {0.0}
    return len(found)


def cut(run: Path, seed: int) -> int:
    """The run as a kill at some moment would have left it; returns the events that are left."""
    lines = (run / "journal.jsonl").read_bytes().splitlines(keepends=True)
    kept = random.Random(seed).randrange(2, len(lines))
    (run / "journal.jsonl").write_bytes(b"".join(lines[:kept]))
    whole = sum(b'"kind":"committed"' in line for line in lines[:kept])
    episodes = (run / "episodes.jsonl").read_bytes().splitlines(keepends=True)
    (run / "episodes.jsonl").write_bytes(b"".join(episodes[:whole]))
    for name in (HEAD, "summary.json", "metrics.jsonl", "rewards.csv"):
        (run / name).unlink()
    return kept


@pytest.mark.parametrize("strategy", ["beam", "chains"])
@pytest.mark.parametrize("where", WHERE)
@pytest.mark.slow
def test_an_answer_that_a_task_cant_digest_costs_its_trajectory_alone(
    tmp_path: Path, where: str, strategy: str
) -> None:
    notes = Notes()
    played = config(where, f"search.strategy={strategy}", "credit.share=0.5")
    run = orchestry.train(played, tmp_path / "run", notes)
    assert run.summary.stopped == "done"
    assert 0 < failed(run) == run.summary.tags[TASK_ERROR] < run.summary.leaves
    assert len(notes.warnings) == 2
    assert str(tmp_path / "run" / KEPT) in notes.warnings[0]
    kept = (tmp_path / "run" / KEPT).read_text()
    assert kept.count("Traceback") == 1
    assert "had answered:" in kept
    scored = [event for event in run.events if isinstance(event, Scored)]
    odd = sum(TASK_ERROR in event.score.tags for event in scored)
    assert notes.warnings[1].startswith(f"warning: {odd} of ")
    assert f"({odd} of {len({event.key for event in scored})})" in " ".join(
        fault_counts(run).values()
    )
    whole = artefacts(tmp_path / "run")
    for seed in range(3):
        shutil.copytree(tmp_path / "run", tmp_path / f"killed {seed}")
        cut(tmp_path / f"killed {seed}", seed)
        resume(tmp_path / f"killed {seed}")
        assert artefacts(tmp_path / f"killed {seed}") == whole


def test_a_run_stops_at_once_where_its_first_evaluations_raise_and_goes_on_once_mended(
    tmp_path: Path,
) -> None:
    broken = config("evaluate", "options.one_in=1", "search.concurrency=1")
    for _ in range(2):
        with pytest.raises(TaskFault, match="evaluate raised RecursionError"):
            run_plan(prepare(broken), tmp_path / "run", Silent())
        events = list(read(tmp_path / "run" / "journal.jsonl"))
        answers = [event for event in events if isinstance(event, Answered)]
        assert not any(isinstance(event, Scored) for event in events)
        assert len({event.key for event in answers}) == len(answers) <= FIRST_FAULTS + 4
        assert not (tmp_path / "run" / KEPT).exists()
    mended = config("nowhere", "search.concurrency=1")
    (tmp_path / "run" / "config.yaml").write_text(mended.to_yaml())
    run = resume(tmp_path / "run", accept=True)
    orchestry.train(mended, tmp_path / "whole")
    assert run.episodes == load_run(tmp_path / "whole").episodes


@pytest.mark.parametrize(
    ("samples", "stopped_in"), [(1, FIRST_FAULTS - 1), (2, 0)], ids=["one answer", "an episode"]
)
def test_a_first_episode_that_raises_whole_stops_the_run_but_one_answer_does_not(
    tmp_path: Path, samples: int, stopped_in: int
) -> None:
    short = (f"search.k_samples={samples}", "search.episodes_in_flight=1", "episodes=20")
    played = config("evaluate", "options.one_in=1", "search.strategy=chains", *short)
    with pytest.raises(TaskFault, match="evaluate raised"):
        orchestry.train(played, tmp_path / "run")
    events = read(tmp_path / "run" / "journal.jsonl")
    assert sum(isinstance(event, Committed) for event in events) == stopped_in


def test_a_run_without_any_score_fails_in_the_end(tmp_path: Path) -> None:
    short = ("search.strategy=chains", "search.k_samples=1", "episodes=3")
    with pytest.raises(TaskFault, match="evaluate raised"):
        orchestry.train(config("evaluate", "options.one_in=1", *short), tmp_path / "run")


def test_no_key_reaches_the_file_the_journal_or_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SOME_SERVICE_API_KEY", "SENTINEL-0123456789")
    notes = Notes()
    orchestry.train(
        config("evaluate", "options.says=SOME_SERVICE_API_KEY"), tmp_path / "run", notes
    )
    written = [path.read_text() for path in (tmp_path / "run").iterdir() if path.is_file()]
    assert any("RecursionError: [secret] is too much" in text for text in written)
    assert not any("SENTINEL" in text for text in [*written, *notes.warnings])


async def test_what_is_no_fault_of_the_task_passes_out_of_its_task_groups() -> None:
    async def stop() -> None:
        raise SandboxError("no sandbox")

    with pytest.raises(SandboxError), task_boundary(Words(), "evaluate"):
        async with asyncio.TaskGroup() as group:
            group.create_task(stop())
    its_own = pytest.raises(TaskFault, match="evaluate raised ExceptionGroup")
    with its_own, task_boundary(Words(), "evaluate"):
        raise ExceptionGroup("of the task", [ValueError("odd")])


class Mute(Exception):
    """What can't say what it is."""

    def __str__(self) -> str:
        raise RuntimeError("no words")


class Panic(BaseException):
    """As libraries in Rust raise it (pyo3)."""


@pytest.mark.parametrize("raised", [asyncio.CancelledError(), Panic("at a byte"), Mute()])
async def test_whatever_a_task_raises_is_its_fault(raised: BaseException) -> None:
    named = f"evaluate raised {type(raised).__name__}: "
    with pytest.raises(TaskFault, match=named), task_boundary(Words(), "evaluate"):
        raise raised


async def test_work_that_is_stopped_meanwhile_is_no_fault_of_the_task() -> None:
    async def work() -> None:
        with task_boundary(Words(), "evaluate"):
            await asyncio.sleep(60)

    task = asyncio.create_task(work())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    for stop in (KeyboardInterrupt(), GeneratorExit()):
        with pytest.raises(type(stop)), task_boundary(Words(), "evaluate"):
            raise stop
