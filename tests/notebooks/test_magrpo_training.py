"""The notebook: clean as it is stored, and played from its first cell to its last one."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import nbformat
import pytest

import orchestry
from orchestry.store.journal import Learned
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
        return self.score(even=sum(ord(sign) % 2 == 0 for sign in text) / max(1, len(text)))
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
    }
    cell = _cell(notebook, "parameters")
    assert cell.metadata.tags == ["parameters"]
    cell.source += "".join(f"\n{name} = {value!r}" for name, value in settings.items())
    client = NotebookClient(
        notebook, timeout=300, kernel_name="python3", resources={"metadata": {"path": tmp_path}}
    )
    client.execute()

    shown = {c.id: c.get("outputs", []) for c in notebook.cells if c.cell_type == "code"}
    said = {id: "".join(o.get("text", "") for o in outputs) for id, outputs in shown.items()}
    assert said["trying"].endswith("s\n")
    assert "5 updates in" in said["trying"]
    assert "done after 2 updates" in said["training"]
    assert "12 episodes, 3 updates" in said["resuming"]
    assert [c.split(":")[0].strip() for c in said["evaluating"].splitlines()] == [
        "untrained",
        "trained",
        "difference",
    ]
    assert "$0.0000 of $1.0" in said["counting"]
    for id in ("plotting", "parts"):
        assert any("image/png" in output.get("data", {}) for output in shown[id]), id

    [folder] = (tmp_path / "runs").glob("even--run--*")
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
