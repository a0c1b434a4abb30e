"""The notebook: clean as it is stored, and played from its first cell to its last one."""

from __future__ import annotations

import copy
import logging
import os
import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import nbformat
import pytest

import orchestry
from orchestry.core.types import Limits
from orchestry.sandbox import open_sandbox
from orchestry.store.journal import Learned
from orchestry.task.registry import load_task
from tests.backends.local.tiny import tiny_folder

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "notebooks" / "magrpo_training.ipynb"
TASK = '''"""Two agents earn the share of even character codes in what they write."""

from orchestry import AgentSpec, Problem, TeamTask


class Even(TeamTask):
    name = "even"
    agents = (AgentSpec(role="first"), AgentSpec(role="second"))
    weights = {"even": 1.0}

    def problems(self, split):
        return [Problem(id=f"{split}{n}", prompt=f"Write {n}.", split=split) for n in range(3)]

    async def evaluate(self, state, tools):
        text = "".join(said for _, said in state.said)
        even = sum(ord(sign) % 2 == 0 for sign in text) / max(1, len(text))
        return self.score(even=even, tags=["cooperates"] if even > 0.25 else [])

    def gold(self, problem):
        return {"first": "bd", "second": "fh"}
'''


@pytest.fixture(name="notebook")
def _notebook() -> Any:
    return nbformat.read(NOTEBOOK, as_version=4)


def test_it_is_stored_without_outputs_and_in_normal_form(notebook: Any) -> None:
    nbformat.validate(notebook)
    assert NOTEBOOK.read_text(encoding="utf-8") == nbformat.writes(notebook) + "\n"
    for cell in notebook.cells:
        assert cell.id.isalpha(), f"cell {cell.id}: give it an id that says what it is"
        if cell.cell_type == "code":
            assert not cell.outputs, f"cell {cell.id}: clear its outputs"
            assert cell.execution_count is None, f"cell {cell.id}: clear its number"


def test_a_key_is_asked_for_only_where_a_judge_needs_one(
    notebook: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    secret, asked = "typed-by-hand", list[str]()
    source = _cell(notebook, "asking").source

    def typed(prompt: str) -> str:
        asked.append(prompt)
        return secret

    monkeypatch.setattr("getpass.getpass", typed)
    monkeypatch.setattr("os.environ", {})
    exec(source, {"JUDGE": False})
    assert not asked
    exec(source, {"JUDGE": True})
    assert asked == ["ANTHROPIC_API_KEY: "]
    assert os.environ["ANTHROPIC_API_KEY"] == secret
    exec(source, {"JUDGE": True})
    assert len(asked) == 1
    assert capsys.readouterr().out == ""


def test_its_steps_are_numbered(notebook: Any) -> None:
    heads = [cell.source.partition("\n")[0] for cell in notebook.cells if "## " in cell.source]
    steps = [re.findall(r"^## Step (\d+): \w", head) for head in heads]
    assert [int(number) for found in steps for number in found] == [*range(1, 14)]


@pytest.fixture(name="storage")
def _storage(
    notebook: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[dict[str, Any]]:
    """What the cell that finds the place of the runs needs, with a drive in a folder here instead
    of Google's, which only Colab has."""
    drive = ModuleType("google.colab.drive")
    drive.mount = lambda place: (Path(place) / "MyDrive").mkdir(parents=True)  # type: ignore[attr-defined]
    colab = ModuleType("google.colab")
    colab.drive = drive  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "google.colab", colab)
    source = _cell(notebook, "mounting").source.replace("/content", str(tmp_path))
    own = {"Path": Path, "shutil": shutil, "sys": sys, "RUNS": str(tmp_path / "runs")}
    yield {"source": source, **own}
    for handler in logging.getLogger("notebook").handlers:
        handler.close()


def test_on_colab_runs_and_log_are_on_the_drive(storage: dict[str, Any], tmp_path: Path) -> None:
    exec(storage["source"], storage | {"DRIVE": True})
    log = tmp_path / "drive" / "MyDrive" / "orchestry" / "notebook.log"
    assert str(log.parent) in log.read_text(encoding="utf-8")
    assert not (tmp_path / "runs").exists()


def test_the_drive_can_be_left_out(storage: dict[str, Any], tmp_path: Path) -> None:
    exec(storage["source"], storage | {"DRIVE": False})
    assert (tmp_path / "runs" / "notebook.log").is_file()
    assert not (tmp_path / "drive").exists()


def test_a_drive_that_is_not_there_is_said(storage: dict[str, Any]) -> None:
    sys.modules["google.colab"].drive.mount = lambda place: None
    with pytest.raises(RuntimeError, match=r"not at .*MyDrive: allow access, or set DRIVE = False"):
        exec(storage["source"], storage | {"DRIVE": True})


async def test_its_rates_are_tags_that_its_own_task_gives(notebook: Any) -> None:
    """The test that plays has another task, since a tiny model never cooperates in this one."""
    own = dict[str, Any]()
    exec(_cell(notebook, "parameters").source, own)
    task = load_task(own["TASK"], cwd=ROOT)
    problem = task.problems("train")[0]
    right, *_ = task.graded(problem)
    async with open_sandbox(Limits()) as sandbox:
        state = task.step(task.reset(problem, 0), right)
        score = await task.evaluate(state, orchestry.Tools(sandbox=sandbox))
    assert task.solved in own["RATES"]
    assert {*own["RATES"]} <= {*score.tags}


@pytest.mark.slow
def test_it_plays_on_a_tiny_model(notebook: Any, tmp_path: Path) -> None:
    from nbclient import NotebookClient

    (tmp_path / "tasks" / "even").mkdir(parents=True)
    (tmp_path / "tasks" / "even" / "task.py").write_text(TASK)
    settings = {
        "TASK": "even",
        "TASK_PATH": [str(tmp_path / "tasks")],
        "MODEL": str(tiny_folder(tmp_path / "model")),
        "EPISODES": 8,
        "MORE_EPISODES": 4,
        "MAX_TOKENS": 8,
        "GOLDS": 3,
        "RATES": ["cooperates"],
    }
    cell = _cell(notebook, "parameters")
    assert cell.metadata.tags == ["parameters"]
    assert 'TASK = "code_collaboration"' in cell.source
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in settings.items())
    for id, new in (("training", "again"), ("exporting", "twice")):  # all cells are run once more
        notebook.cells.append(copy.deepcopy(_cell(notebook, id)))
        notebook.cells[-1].id = new
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()

    shown = {c.id: c.get("outputs", []) for c in notebook.cells if c.cell_type == "code"}
    said = {id: "".join(o.get("text", "") for o in outputs) for id, outputs in shown.items()}
    assert said["trying"].endswith("%\n")
    assert "5 episodes to play, of 3 problems" in said["trying"]
    assert re.search(r"· [\d,]{5,} parameters in the base, and [\d,]{4,} trained", said["trying"])
    rates = re.findall(r"episode \d: mean reward 0\.\d+, cooperates (\d+)%", said["trying"])
    assert len(rates) == 5
    assert len({*rates}) > 1
    assert "5 updates in" in said["trying"]
    assert "done after 2 updates" in said["training"]
    assert "4 episodes to play" in said["resuming"]
    assert "12 episodes, 3 updates" in said["resuming"]
    assert "0 episodes to play" in said["again"]
    assert "done after 3 updates" in said["again"]
    assert [c.split(":")[0].strip() for c in said["evaluating"].splitlines()] == [
        "untrained",
        "trained",
        "difference",
        "untrained",
        "trained",
    ]
    assert said["exporting"].count("MB") == 2  # an adapter per agent
    assert said["exporting"].endswith(said["twice"])
    log = (tmp_path / "runs" / "notebook.log").read_text(encoding="utf-8")
    told = [o.text for id in ("trying", "training") for o in shown[id] if o.name == "stdout"]
    for line in "".join(told).splitlines():
        assert line in log
    assert "$0.0000 of $1.0" in said["counting"]
    for id in ("plotting", "parts"):
        assert any("image/png" in output.get("data", {}) for output in shown[id]), id

    folder = tmp_path / "runs" / "even--first"
    warm = tmp_path / "runs" / "even--first--warm"
    assert f"both agents begin at {warm.relative_to(tmp_path)}" in said["warming"]
    adapter = "first/adapter_model.safetensors"
    begun = (folder / "start" / adapter).read_bytes()
    assert begun == (warm / "checkpoints" / "000001" / adapter).read_bytes()
    run = orchestry.load_run(folder)
    assert len(run.episodes) == 12
    assert len({round(reward, 6) for reward in run.rewards}) > 4
    assert sum(isinstance(event, Learned) for event in run.events) == 3
    untrained = orchestry.load_run(folder / "evaluations" / "test--update-0")
    trained = orchestry.load_run(folder / "evaluations" / "test--update-3")
    assert [e.seed for e in trained.episodes] == [e.seed for e in untrained.episodes]
    assert trained.rewards != untrained.rewards


def _cell(notebook: Any, id: str) -> Any:
    return next(cell for cell in notebook.cells if cell.id == id)
