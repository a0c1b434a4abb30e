"""A local run says where it learns nothing, and what is at fault where numbers are none."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("peft")

from safetensors.torch import load_file, save_file

import orchestry
from orchestry.backends.local.taught import empty, leftover
from orchestry.cli.show import ending
from orchestry.core.errors import LearnError
from orchestry.engine.run import prepare, resume
from orchestry.engine.session import Silent
from orchestry.store.run import Run
from tests.backends.letters import EVERY, TASK, config, learned, trainer, write_task

pytestmark = pytest.mark.usefixtures("one_thread")


class Heard(Silent):
    def __init__(self) -> None:
        self.notes: list[str] = []

    def note(self, text: str) -> None:
        self.notes.append(text)


def test_a_run_without_a_lesson_says_so_first_often_and_last(model: str, tmp_path: Path) -> None:
    tie = TASK.replace("quality=text.count", "quality=0 * text.count")
    tasks, heard = write_task(tmp_path / "tasks", tie), Heard()
    sets = ("episodes=3", "learn.every=1")
    run = orchestry.train(config(model, tasks, *sets), tmp_path / "run", heard)
    said = "\n".join(heard.notes)
    assert [state.state["samples"] for state in learned(run)] == [0, 0, 0]
    assert said.count("nothing to learn from in this update: in every group the 4 traject") == 1
    assert "(mean reward 0.000): take easier problems" in said
    assert "warning: 3 updates in a row had nothing to learn from" in said
    assert "nothing was learned: none of the 3 updates" in heard.notes[-1]
    assert (run.summary.updates, run.summary.taught) == (3, 0)
    assert "done, and nothing was learned" in ending(run.summary)
    resume(run.folder, {"episodes": 4}, later := Heard())
    assert not any("in this update" in note for note in later.notes)  # which was said before
    assert any("none of the 4 updates" in note for note in later.notes)


def test_a_run_that_learns_is_simply_done(finished: Run) -> None:
    assert finished.summary.taught == finished.summary.updates == 2
    assert "nothing" not in ending(finished.summary)


@pytest.mark.parametrize(("reward", "fix"), [(0.0, "easier"), (1.0, "harder"), (0.5, "group_size")])
def test_the_advice_is_that_of_the_reward(reward: float, fix: str) -> None:
    (note,) = empty([3, 0], reward, 4, last=False)
    assert fix in note


def test_a_lesson_in_between_begins_the_count_anew() -> None:
    assert empty([0, 0, 5], 0.5, 4, last=False) == []
    assert empty([0, 5, 0], 0.5, 4, last=False) == []
    assert empty([0, 5, 0], 0.5, 4, last=True) == ["2 of 3 updates had nothing to learn from"]
    assert "warning: 3 updates" in empty([5, 0, 0, 0], 0.5, 4, last=False)[0]


def test_leftover_episodes_are_told_before_the_start(model: str, tasks: Path) -> None:
    assert leftover(2 * EVERY, EVERY) == []
    notes = prepare(config(model, tasks, "episodes=6")).backend.notes
    assert any(
        "last 2 of 6 episodes teach nothing" in n and "--episodes 4 or 8" in n for n in notes
    )
    none = prepare(config(model, tasks, "episodes=6", "learn.enabled=false")).backend.notes
    assert not any("teach nothing" in note for note in none)


def test_a_damaged_base_is_named_with_its_weight(model: str, tasks: Path, tmp_path: Path) -> None:
    base = shutil.copytree(model, tmp_path / "base")
    weights = load_file(base / "model.safetensors")
    weights["model.norm.weight"][0] = float("nan")
    save_file(weights, base / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(LearnError, match=r"base .* is damaged, its model\.norm\.weight .*fet"):
        orchestry.train(config(str(base), tasks), tmp_path / "run")


def test_a_damaged_adapter_is_named_by_its_agent(model: str, tasks: Path, tmp_path: Path) -> None:
    (adapters,) = (crew.adapters for crew in trainer(model).crews)
    adapters.parameters(1)[0].data[0, 0] = float("inf")
    adapters.save(tmp_path / "damaged")
    sets = (f"learn.from={tmp_path / 'damaged'}",)
    with pytest.raises(LearnError, match=r"the adapter of right holds NaN or infinity: begin"):
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")


@pytest.mark.parametrize(
    ("dtype", "fix"),
    [
        ("float32", r"finite \(.* 1e\+30\), and .* overflows float32: begin .* lower learn\.lea"),
        ("bfloat16", r"bfloat16 is too narrow: set learn\.dtype=float32"),
    ],
)
def test_sound_weights_that_overflow_are_told_apart(
    model: str, tasks: Path, tmp_path: Path, dtype: str, fix: str
) -> None:
    (adapters,) = (crew.adapters for crew in trainer(model).crews)
    for weight in adapters.parameters():
        weight.data.fill_(1e30)
    adapters.save(tmp_path / "large")
    sets = (f"learn.from={tmp_path / 'large'}", f"learn.dtype={dtype}")
    with pytest.raises(LearnError, match=fix) as caught:
        orchestry.train(config(model, tasks, *sets), tmp_path / "run")
    assert "resume" not in str(caught.value)  # which would draw and compute the same again
