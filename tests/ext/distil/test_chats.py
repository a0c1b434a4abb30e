"""A run's best answers as chats: what the lines hold, and what the card says."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

import orchestry
from orchestry.core.config import resolve
from orchestry.core.errors import ConfigError
from orchestry.ext.distil.chats import export_chats
from orchestry.store.run import Run

TASKS = Path(__file__).parents[2] / "fixtures" / "tasks"
ROLES = ("writer", "reviewer", "refactorer")
SETS = [
    "task=words",
    f"task_path=[{TASKS}]",
    "provider.name=fake",
    "judge.enabled=false",
    "behaviors.enabled=false",
    "episodes=3",
]


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Run:
    """A search with filler answers, some of which are cut."""
    folder = tmp_path_factory.mktemp("runs") / "searched"
    return orchestry.train(resolve([], [*SETS, "sampling.max_tokens=30"]), folder)


def read(file: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]


def whole(run: Run) -> set[tuple[str, str]]:
    """Every agent's answers that ended by themselves."""
    return {
        (turn.agent, turn.completion.text)
        for record in run.episodes
        for node in record.nodes
        for turn in node.turns
        if turn.completion.stop == "end"
    }


def test_openai_lines_are_chats_that_end_with_the_answer(run: Run, tmp_path: Path) -> None:
    found = export_chats(run, tmp_path / "out", "openai", top=1.0)
    assert found.cut > 0
    assert sum(found.lines.values()) > 3
    for role, file in found.files.items():
        lines = read(file)
        assert len(lines) == found.lines[role]
        for line in lines:
            assert [*line] == ["messages"]
            *prompt, answer = line["messages"]
            assert [message["role"] for message in prompt] == ["system", "user"]
            assert [*answer] == ["role", "content"]
            assert answer["role"] == "assistant"
            assert (role, answer["content"]) in whole(run)
    text = (tmp_path / "out" / "README.md").read_text(encoding="utf-8")
    assert f"{found.cut} examples with an answer that was cut" in text
    assert "- run `searched`, backend api, answers written by fake-1\n" in text
    assert "- task words, split train, 3 problems" in text
    assert "the 100% of the trajectories that come first by the trajectory's reward" in text
    assert "may restrict training other models" in " ".join(text.split())
    for role in found.files:
        assert re.search(
            rf"\| {role} \| \[{role}.jsonl\]\(./{role}.jsonl\) \| \d+ \| 0\.\d+ to ", text
        )


def test_hf_lines_are_prompts_and_completions(run: Run, tmp_path: Path) -> None:
    found = export_chats(run, tmp_path / "out", "hf", top=1.0, min_reward=0.1)
    for role, file in found.files.items():
        for line in read(file):
            assert [*line] == ["prompt", "completion", "problem", "reward", "model"]
            assert line["reward"] >= 0.1
            assert line["model"] == "fake-1"
            assert (role, line["completion"][0]["content"]) in whole(run)


def test_the_cards_code_loads_a_file(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("datasets")
    found = export_chats(run, tmp_path / "out", "hf", top=1.0)
    (code,) = re.findall(r"```python\n(.*?)```", (tmp_path / "out/README.md").read_text(), re.S)
    monkeypatch.chdir(tmp_path / "out")
    monkeypatch.setenv("HF_DATASETS_CACHE", str(tmp_path / "cache"))
    known: dict[str, Any] = {}
    exec(code, known)
    assert known["data"].num_rows == next(iter(found.lines.values()))


def test_preferences_have_two_answers_to_one_prompt(run: Run, tmp_path: Path) -> None:
    found = export_chats(run, tmp_path / "hf", "hf", method="dpo")
    for role, file in found.files.items():
        for line in read(file):
            assert [*line] == ["prompt", "chosen", "rejected", "problem", "reward", "model"]
            assert line["chosen"] != line["rejected"]
            for side in ("chosen", "rejected"):
                assert (role, line[side][0]["content"]) in whole(run)
    openai = export_chats(run, tmp_path / "openai", "openai", method="dpo")
    assert openai.lines == found.lines
    (line, *_) = read(next(iter(openai.files.values())))
    assert [*line] == ["input", "preferred_output", "non_preferred_output"]
    text = (tmp_path / "hf" / "README.md").read_text()
    assert "# Preferences between two answers of the team of task words" in text
    assert "the 100% of the pairs with the largest differences" in text


def test_it_writes_whole_or_not_at_all(run: Run, tmp_path: Path) -> None:
    found = export_chats(run.folder)
    assert found.folder == run.folder / "export" / "openai"
    with pytest.raises(ConfigError, match="export/openai is not empty"):
        export_chats(run.folder)
    with pytest.raises(ConfigError, match="has no gold answers on train"):
        export_chats(run.folder, tmp_path / "gold", gold=True)
    cut = orchestry.train(resolve([], [*SETS, "sampling.max_tokens=1"]), tmp_path / "cut")
    with pytest.raises(ConfigError, match=r"was cut by its limit|has a reward above 0"):
        export_chats(cut, tmp_path / "none")
    assert {path.name for path in tmp_path.iterdir()} == {"cut"}
