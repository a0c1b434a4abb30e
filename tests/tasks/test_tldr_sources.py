"""Rows of trl-lib/tldr become posts, from every kind of local copy, or the fault is named."""

from __future__ import annotations

import gzip
import json
from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from orchestry import Problem
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import SPLITS
from orchestry.task.datasets import split_of
from orchestry.task.registry import load_task

load_task("tldr")
SOURCES = import_module("orchestry_tasks.tldr.sources")
MISSING = 'pip install "orchestry-marl\\[datasets\\]"'
PLANTS = ("ferns", "roses", "beans", "onions", "mint", "peas")


def row(plant: str) -> dict[str, str]:
    """Shaped as the data set's rows are; the text is ours."""
    return {
        "prompt": f"SUBREDDIT: r/gardening\n\nTITLE: My {plant} are in trouble.\n\n"
        f"POST: I watered my {plant} every day.\nNow they are yellow. What can I do?\n\nTL;DR:",
        "completion": f" Too much water made my {plant} yellow.",
    }


ROWS = [row(plant) for plant in PLANTS]
FERNS = (
    "My ferns are in trouble.\nI watered my ferns every day.\nNow they are yellow. What can I do?"
)


def loaded(path: Path | None, most: int = 1000) -> dict[str, Problem]:
    found: dict[str, Problem] = {}
    for split in SPLITS:
        problems = SOURCES.POSTS.problems(path, most, split)
        assert all(p.split == split == split_of(p.id) for p in problems)
        found |= {problem.id: problem for problem in problems}
    return found


def written(folder: Path, *rows: Any) -> Path:
    path = folder / "rows.jsonl"
    path.write_text("".join(json.dumps(found) + "\n" for found in rows), encoding="utf-8")
    return path


def test_a_row_is_its_title_and_post_without_labels(tmp_path: Path) -> None:
    (problem,) = loaded(written(tmp_path, ROWS[0])).values()
    assert problem.prompt == FERNS
    assert problem.data == {}
    assert problem.id == "tldr_fee266da3e6f"


@pytest.mark.parametrize(
    ("prompt", "post"),
    [
        (
            "SUBREDDIT: r/x\n\nTITLE: T\n\nPOST: Said the POST: yes.\n\nTL;DR:",
            "T\nSaid the POST: yes.",
        ),
        (
            "POST: TL;DR: at the start, and more.\r\nEnd.\n\nTL;DR:",
            "TL;DR: at the start, and more.\nEnd.",
        ),
        ("TITLE: \n\nPOST: No title.\nTL;DR:", "No title."),
        ("Just a text.", "Just a text."),
    ],
)
def test_posts_of_odd_shapes(tmp_path: Path, prompt: str, post: str) -> None:
    (problem,) = loaded(written(tmp_path, {"prompt": prompt})).values()
    assert problem.prompt == post


def as_list(path: Path) -> None:
    path.write_text(json.dumps(ROWS, indent=1), encoding="utf-8")


def as_lines(path: Path) -> None:
    path.write_text("\ufeff" + "\n\n".join(map(json.dumps, ROWS)), encoding="utf-8")


def as_gzip(path: Path) -> None:
    path.write_bytes(gzip.compress("\n".join(map(json.dumps, ROWS)).encode(), mtime=0))


@pytest.mark.parametrize(
    ("name", "write"), [("a.json", as_list), ("b.jsonl", as_lines), ("c.jsonl.gz", as_gzip)]
)
def test_every_text_copy_gives_the_same(
    tmp_path: Path, name: str, write: Callable[[Path], None]
) -> None:
    write(tmp_path / name)
    found = loaded(tmp_path / name)
    assert found == loaded(written(tmp_path, *ROWS))
    assert len(found) == len(PLANTS)


@pytest.mark.skipif(find_spec("datasets") is None, reason="needs the extra datasets")
def test_parquet_and_saved_folders_give_the_same(tmp_path: Path) -> None:
    datasets = import_module("datasets")
    parts = {"train": ROWS[:4], "validation": ROWS[4:]}
    split = {name: datasets.Dataset.from_list(rows) for name, rows in parts.items()}
    datasets.DatasetDict(split).save_to_disk(str(tmp_path / "saved"))
    datasets.Dataset.from_list(ROWS).to_parquet(str(tmp_path / "a.parquet"))
    wanted = loaded(written(tmp_path, *ROWS))
    assert loaded(tmp_path / "saved") == loaded(tmp_path / "a.parquet") == wanted


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the extra datasets is there")
@pytest.mark.parametrize("name", ["a.parquet", "saved", None])
def test_a_missing_extra_is_named(tmp_path: Path, name: str | None) -> None:
    (tmp_path / "a.parquet").write_bytes(b"PAR1")
    (tmp_path / "saved").mkdir()
    with pytest.raises(ConfigError, match=MISSING):
        loaded(tmp_path / name if name else None)


def test_no_more_rows_than_asked_are_read(tmp_path: Path) -> None:
    path = written(tmp_path, *ROWS[:3], "no row")
    assert [*loaded(path, 3).values()] != []
    assert len(loaded(path, 2)) == 2
    with pytest.raises(TaskError, match="line 4 has no text in 'prompt'"):
        loaded(path, 4)


def test_a_post_that_comes_twice_is_one_problem(tmp_path: Path) -> None:
    assert len(loaded(written(tmp_path, ROWS[0], ROWS[1], ROWS[0]))) == 2


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ('{"prompt": 3}', "line 1 has no text in 'prompt': is it a row of trl-lib/tldr"),
        ("[1]", "row 1 has no text in 'prompt'"),
        ('{"post": "x"}', "line 1 has no text in 'prompt'"),
        ('{"prompt": "POST: TL;DR:"}', "line 1 has nothing in 'prompt'"),
        ('{"prompt": ', "line 1 is not JSON"),
        ("\n", "has no rows: give a whole copy of trl-lib/tldr"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, content: str, message: str) -> None:
    path = tmp_path / "rows.jsonl"
    path.write_text(content)
    with pytest.raises(TaskError, match=message):
        loaded(path)


@pytest.mark.parametrize(
    ("name", "error", "message"),
    [
        ("none.jsonl", ConfigError, "does not exist: name a local copy of trl-lib/tldr"),
        ("rows.xlsx", ConfigError, "is of no kind known here"),
        ("cut.jsonl.gz", TaskError, "can't be read"),
    ],
)
def test_a_file_that_is_none_is_named(
    tmp_path: Path, name: str, error: type[Exception], message: str
) -> None:
    if name != "none.jsonl":
        (tmp_path / name).write_bytes(gzip.compress(b"{}", mtime=0)[:-9])
    with pytest.raises(error, match=message):
        loaded(tmp_path / name)


def test_the_task_takes_a_data_set_or_a_bank_of_its_own_kind(tmp_path: Path) -> None:
    path = written(tmp_path, *ROWS)
    task = load_task("tldr", options={"bank": "tldr", "path": str(path), "rows": 5})
    problems = [problem for split in SPLITS for problem in task.problems(split)]
    assert len(problems) == 5
    assert all(task.gold(problem) is None for problem in problems)
    with pytest.raises(TaskError, match=r"a copy of a data set needs options\.bank: tldr"):
        load_task("tldr", options={"path": str(path)}).problems("train")
    with pytest.raises(ConfigError, match="does not exist: name a file of problems"):
        load_task("tldr", options={"path": str(tmp_path / "none")}).problems("train")
