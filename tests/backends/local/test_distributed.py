"""Two real processes of a launch: they learn what one alone would, and hear of the other's end."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("accelerate")

import orchestry
from orchestry.backends.local.distributed import dealt
from orchestry.core.config import resolve
from orchestry.engine.run import resume
from orchestry.store.run import Run, load_run
from tests.backends.letters import TASK, learned, settings, write_task
from tests.backends.local.launched import finish, launching, learn
from tests.backends.local.tiny import tiny_folder

TOLERANCE = 1e-5
MARK = "ORCHESTRY_TEST"
"""In the environment of what this process launches: its id."""


def words(sets: Sequence[str]) -> list[str]:
    return [word for item in sets for word in ("--set", item)]


def launched_here() -> dict[int, int]:
    """The processes of launches below this one, by rank."""
    found = dict[int, int]()
    for place in Path("/proc").glob("[0-9]*"):
        try:
            line = (place / "cmdline").read_bytes()
            environ = dict(
                item.split(b"=", 1)
                for item in (place / "environ").read_bytes().split(b"\0")
                if b"=" in item
            )
        except OSError:
            continue
        ours = environ.get(MARK.encode()) == str(os.getpid()).encode()
        if ours and b"orchestry" in line and b"RANK" in environ:
            found[int(environ[b"RANK"])] = int(place.name)
    return found


@pytest.fixture(autouse=True)
def mine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(MARK, str(os.getpid()))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(tiny_folder(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture(scope="module")
def one(tmp_path_factory: pytest.TempPathFactory, model: str) -> Iterator[Run]:
    """What one process makes of three updates."""
    folder = tmp_path_factory.mktemp("one")
    tasks, threads = write_task(folder / "tasks", TASK), torch.get_num_threads()
    yield orchestry.train(resolve([], settings(model, tasks, "episodes=12")), folder / "run")
    torch.set_num_threads(threads)


def weights(folder: Path) -> dict[str, Any]:
    """All saved adapters and optimizer states, flat."""
    from safetensors.torch import load_file

    found = dict[str, Any]()
    for path in sorted(folder.glob("*/*/adapter_model.safetensors")):
        for name, tensor in load_file(path).items():
            found[f"{path.parent.parent.name}/{path.parent.name}/{name}"] = tensor
    for path in sorted(folder.glob("*/optimizer.pt")):
        state = torch.load(path, weights_only=True)["adamw"]["state"]
        for number, moments in state.items():
            found[f"{path.parent.name}/{number}"] = moments["exp_avg"]
    return found


def assert_near(one: Path, two: Path) -> None:
    first, second = weights(one), weights(two)
    assert first
    assert first.keys() == second.keys()
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, atol=TOLERANCE, rtol=1e-4, msg=name)


def wait_for(mark: Callable[[], bool], seconds: float) -> float:
    """How long it took."""
    began = time.monotonic()
    while not mark():
        assert time.monotonic() < began + seconds
        time.sleep(0.01)
    return time.monotonic() - began


def gone(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return True
    return state == "Z"


@pytest.fixture(scope="module", autouse=True)
def _all_cores() -> Iterator[None]:
    """Two processes of a launch need a core each: on one they may abort each other's start."""
    before = os.sched_getaffinity(0)
    os.sched_setaffinity(0, range(os.cpu_count() or 1))
    yield
    os.sched_setaffinity(0, before)


def test_equal_prompts_stay_together_and_tokens_are_balanced() -> None:
    keys = ["a", "b", "a", "c", "d", "e"]
    assert dealt(keys, [10, 10, 10, 10, 10, 10], [40, 20, 40, 50, 20, 20], 2) == [0, 1, 0, 1, 0, 1]
    assert dealt(["a", "a"], [1, 1], [1, 1], 3) == [0, 0]
    assert dealt([], [], [], 2) == []


def test_a_shared_prompt_weighs_once() -> None:
    """Six answers to one prompt of 100 tokens are lighter than two of 60."""
    keys = ["a"] * 6 + ["b", "c"]
    assert dealt(keys, [100] * 6 + [60, 60], [1] * 8, 2) == [0] * 6 + [1, 1]


@pytest.mark.slow
def test_two_processes_draw_and_learn_what_one_does(tmp_path: Path) -> None:
    tiny_folder(tmp_path / "tiny")
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    threads = torch.get_num_threads()
    learn(one)
    torch.set_num_threads(threads)
    with launching("tests.backends.local.launched", "learn", str(two)) as process:
        code, said = finish(process)
    assert code == 0, said
    alone, both = (json.loads((folder / "done.json").read_text()) for folder in (one, two))
    assert both["draws"] == alone["draws"]
    assert both["again"] == alone["again"]
    assert alone["again"] != alone["draws"]
    for step in ("first", "second"):
        assert both[step].pop("norms") == pytest.approx(alone[step].pop("norms"), rel=1e-4)
        assert both[step] == pytest.approx(alone[step], rel=1e-4)
    assert both["errors"] == [alone["errors"][0], f"process 1: {alone['errors'][1]}"]
    assert all("is nan: no weight has moved" in error for error in alone["errors"])
    assert (alone["notes"], both["notes"]) == ([], ["2 processes draw and learn together"])
    assert_near(one, two)


@pytest.mark.slow
def test_a_process_without_memory_for_a_step_stops_all(tmp_path: Path) -> None:
    """Else it would go on silently with weights of its own."""
    tiny_folder(tmp_path / "tiny")
    folder = tmp_path / "run"
    folder.mkdir()
    with launching("tests.backends.local.launched", "starve", str(folder)) as process:
        code, said = finish(process)
    assert code == 0, said
    assert (folder / "error").read_text().startswith("process 1: AdamW's two moments of each of ")


def same_run(one: Run, two: Run) -> None:
    """In all that one run of as many processes as you like must be."""
    assert [e.problem for e in two.episodes] == [e.problem for e in one.episodes]
    rewards = [episode.reward for episode in one.episodes]
    assert [episode.reward for episode in two.episodes] == pytest.approx(rewards, abs=TOLERANCE)
    assert len(learned(two)) == len(learned(one))
    assert_near(one.folder / "checkpoints", two.folder / "checkpoints")


@pytest.mark.slow
def test_a_run_of_two_processes_is_one_run(one: Run, model: str, tmp_path: Path) -> None:
    tasks = write_task(tmp_path / "tasks", TASK)
    sets = settings(model, tasks, "episodes=8")
    two = tmp_path / "runs" / "two"
    with launching("orchestry", "run", "--run-dir", str(two), *words(sets)) as process:
        code, said = finish(process)
    assert code == 0, said
    assert said.count("letters: done") == 1
    assert said.count("update 2: learning") == 1
    assert [path.name for path in two.parent.iterdir()] == ["two"]
    assert {path.name for path in two.iterdir()} == {p.name for p in one.folder.iterdir()}
    with launching("orchestry", "resume", str(two), "--episodes", "12") as process:
        code, said = finish(process)
    assert code == 0, said
    same_run(one, load_run(two))
    assert load_run(two).summary.calls == one.summary.calls
    with launching("orchestry", "evaluate", str(two)) as process:
        code, said = finish(process)
    assert code == 0, said
    assert (two / "evaluations" / "test--update-3" / "summary.json").exists()


@pytest.mark.slow
@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("victim", [0, 1])
def test_a_killed_process_ends_the_launch_and_the_run_goes_on(
    one: Run, model: str, tmp_path: Path, victim: int
) -> None:
    """Killed in the pause before the second block's rewards. Where the launcher's SIGTERM comes
    first, process 0 ends as by the user's wish; where not, it says that another has ended. This
    process alone goes on with the run."""
    tasks = write_task(tmp_path / "tasks", TASK.replace("PAUSE = 0.0", "PAUSE = 0.3"))
    sets = settings(model, tasks, "episodes=12")
    two, mark = tmp_path / "two", b'"learned","update":1'
    journal = two / "journal.jsonl"
    with launching("orchestry", "run", "--run-dir", str(two), *words(sets)) as process:
        wait_for(lambda: journal.exists() and mark in journal.read_bytes(), 300)
        both = launched_here()
        assert sorted(both) == [0, 1]
        os.kill(both[victim], signal.SIGKILL)
        wait_for(lambda: all(map(gone, both.values())), 20 if victim else 5)
        code, _ = finish(process)
    assert code != 0
    assert len(learned(load_run(two))) < 3
    same_run(one, resume(two))


@pytest.mark.slow
def test_a_stop_from_the_keyboard_ends_both_in_good_order(model: str, tmp_path: Path) -> None:
    """The launcher passes it on to all; the second process stays until the first has ended."""
    tasks = write_task(tmp_path / "tasks", TASK.replace("PAUSE = 0.0", "PAUSE = 0.3"))
    run, mark = tmp_path / "run", b'"learned","update":1'
    sets = settings(model, tasks, "episodes=100")
    with launching("orchestry", "run", "--run-dir", str(run), *words(sets)) as process:
        wait_for(lambda: (run / "journal.jsonl").exists(), 300)
        wait_for(lambda: mark in (run / "journal.jsonl").read_bytes(), 60)
        both = launched_here()
        process.send_signal(signal.SIGINT)
        wait_for(lambda: all(map(gone, both.values())), 25)
        _, said = finish(process)
    assert sorted(both) == [0, 1]
    assert "interrupted: `orchestry resume" in said
    assert "another process" not in said
    assert load_run(run).summary.stopped == "interrupted"


@pytest.mark.slow
def test_what_is_refused_ends_both(tmp_path: Path, model: str) -> None:
    tasks = write_task(tmp_path / "tasks", TASK)
    for sets in (
        ["provider.name=fake"],
        settings(str(tmp_path / "absent"), tasks),
    ):
        folder = tmp_path / "run"
        with launching("orchestry", "run", "--run-dir", str(folder), *words(sets)) as process:
            wait_for(lambda: process.poll() is not None, 60)
            _, said = finish(process)
        assert said.count("\norchestry: ") + said.startswith("orchestry: ") == 1, said
        assert not folder.exists()


@pytest.mark.slow
def test_two_processes_work_fail_and_part_together(tmp_path: Path) -> None:
    with launching("tests.backends.local.launched", "meet", str(tmp_path)) as process:
        code, said = finish(process)
    assert code != 0, said  # the second process ended by itself
    found = json.loads((tmp_path / "found.json").read_text())
    assert found["ranks"] == [0, 1]
    assert found["sums"] == [[1.0, 1.0], [2.0, 2.0, 2.0]]
    assert found["error 0"] == ["ZeroDivisionError", "no such luck", False]
    name, text, traced = found["error 1"]
    assert (name, traced) == ("LearnError", True)
    assert text == "process 1: unforeseen ZeroDivisionError: no such luck"
    notes = ["about to fail", "process 1: fine", "fine", "process 1: about to fail"]
    assert found["said"] == notes
    assert found["alone"].startswith("another process of this launch has ended (")
    assert ".cc" not in found["alone"]
