"""A local run's settings beside the paper's."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from orchestry.report.paper import differences
from orchestry.report.runs import read_experiments

ROOT = Path(__file__).parents[2]


def settings(folder: Path, **changes: object) -> str:
    path = folder / "config.yaml"
    path.write_text(yaml.safe_dump({**yaml.safe_load(path.read_text()), **changes}))
    return differences(read_experiments([folder]))


def rows(text: str) -> dict[str, list[str]]:
    found = (line.strip("| ").split(" | ") for line in text.splitlines() if line.startswith("|"))
    return {cells[0].partition(" (")[0]: cells[1:] for cells in found}


def test_each_setting_is_the_same_or_differs(folder: Path) -> None:
    learn = {"baseline": "critic", "discount": 1.0, "learning_rate": 2e-5}
    sampling = {"temperature": 0.6, "max_tokens": 64}
    text = settings(
        folder, backend="local", task="code_collaboration", learn=learn, sampling=sampling
    )
    found = rows(text)
    assert found["an action is compared with"] == ["mean", "critic", "differs"]
    assert found["discount"] == ["1.0", "1.0", "same"]
    assert found["learning rate"] == ["2e-05", "2e-05", "same"]
    assert found["temperature"] == ["0.6", "0.6", "same"]
    assert found["longest answer, tokens"] == ["256", "64", "differs"]
    assert found["turns of each agent"] == ["2", "1", "differs"]
    assert found["pass&#64;1"][1].startswith("not measured")
    assert "arXiv 2508.04652" in text


@pytest.mark.parametrize("name", ["arxiv", "local_writing"])
def test_the_presets_for_writing_have_the_papers_settings_but_for_what_they_name(
    name: str, folder: Path
) -> None:
    preset = yaml.safe_load((ROOT / "configs" / f"{name}.yaml").read_text())
    found = rows(settings(folder, **preset))
    same = (
        "learning rate",
        "temperature",
        "top-p",
        "longest answer, tokens",
    )
    assert {key: found[key][2] for key in same} == dict.fromkeys(same, "same")
    assert found["base"][0] == "Qwen/Qwen3-1.7B", "as the preset's head says"
    if name == "arxiv":
        assert found["problems"] == ["arxiv", "arxiv", "same"]
        assert preset["passes"] * preset["options"]["rows"] == 2200


def test_a_return_of_stages_is_no_difference_where_agents_act_once(folder: Path) -> None:
    learn, name = {"rewards": "differences"}, "what a stage's action earns"
    assert rows(settings(folder, backend="local", learn=learn))[name][2] == "differs"
    path = folder / "episodes.jsonl"
    records = [json.loads(line) for line in path.read_text().splitlines()]
    for node in (node for record in records for node in record["nodes"]):
        if node["id"].count(".") > 1:
            node["turns"] = []  # of later stages
    path.write_text("".join(f"{json.dumps(record)}\n" for record in records))
    text = settings(folder, backend="local", learn=learn)
    assert rows(text)[name][2] == "no difference: agents act once"


def test_other_tasks_have_the_algorithm_alone_and_other_backends_nothing(folder: Path) -> None:
    assert "discount" in (found := rows(settings(folder, backend="local")))
    assert "temperature" not in found
    assert settings(folder, backend="api") == ""
