"""Columns of a data set become problems, in splits named as its own; folders of problems too."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry import Problem
from orchestry.core.errors import ConfigError, LeftOut, TaskError
from orchestry.core.types import SPLITS
from orchestry.task.datasets import Columns, folder, own, rows, split_of

ROWS: list[dict[str, Any]] = [
    {"key": n, "question": f"What is {n} + {n}?", "answer": str(2 * n)} for n in range(40)
]
SUMS = Columns(hub="made/sums", prompt="question", data={"right": "answer"}, id="key")


def lines(path: Path, rows: list[dict[str, Any]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows), encoding="utf-8")
    return path


def ids(source: Columns, path: Path) -> dict[str, list[int]]:
    return {split: [int(one.id) for one in source.problems(path, split)] for split in SPLITS}


def parted(home: Path) -> Path:
    """As a hub's repository lies on a disk."""
    lines(home / "data" / "train-00000-of-00002.jsonl", ROWS[:10])
    lines(home / "data" / "train-00001-of-00002.jsonl", ROWS[10:20])
    lines(home / "data" / "validation-00000-of-00001.jsonl", ROWS[20:30])
    text = "".join(f"{json.dumps(row)}\n" for row in ROWS[30:])
    (home / "data" / "test-00000-of-00001.jsonl.gz").write_bytes(gzip.compress(text.encode()))
    (home / "README.md").write_text("made/sums")
    return home


def test_columns_are_a_problem(tmp_path: Path) -> None:
    (problem, *_) = SUMS.problems(parted(tmp_path), "train")
    data = {"right": "0"}
    assert problem == Problem(id="0", prompt="What is 0 + 0?", data=data, split="train")
    nameless = Columns(hub="made/sums", prompt="question", data={"right": "answer"})
    named = [one.id for one in nameless.problems(tmp_path, "train")]
    assert named[0] == "28625e9560c2"
    assert len({*named}) == 20


def test_splits_are_the_data_sets_own(tmp_path: Path) -> None:
    found = ids(SUMS, parted(tmp_path))
    assert found == {"train": [*range(20)], "dev": [*range(20, 30)], "test": [*range(30, 40)]}


def test_one_split_stands_for_several(tmp_path: Path) -> None:
    parted(tmp_path)
    shared = Columns(
        hub="made/sums",
        prompt="question",
        id="key",
        splits={"train": "train", "dev": "train", "test": "test"},
    )
    found = ids(shared, tmp_path)
    assert sorted(found["train"] + found["dev"]) == [*range(20)]
    assert 2 <= len(found["dev"]) < len(found["train"])
    assert found["test"] == [*range(30, 40)]
    assert all(split_of(str(n), ("train", "dev")) == "dev" for n in found["dev"])


def test_a_file_has_no_splits_of_its_own(tmp_path: Path) -> None:
    found = ids(SUMS, lines(tmp_path / "all.jsonl", ROWS))
    assert sorted(n for split in found.values() for n in split) == [*range(40)]
    assert all(split_of(str(n)) == split for split in SPLITS for n in found[split])


@pytest.mark.parametrize(
    ("rows", "why"),
    [
        ([{"key": 1, "question": "?"}], "line 1 has no column 'answer', only key, question"),
        ([{"key": 1, "question": None, "answer": ""}], "line 1 has an empty cell in .*'question'"),
        ([["key"]], "row 1 has no column 'question', none: name another"),
        ([ROWS[0], {**ROWS[0], "answer": "1"}], "line 2: a second row of the id '0'"),
    ],
)
def test_rows_that_are_no_problems(tmp_path: Path, rows: Any, why: str) -> None:
    with pytest.raises(TaskError, match=why):
        SUMS.problems(lines(tmp_path / "bad.jsonl", rows), "train")


def test_half_a_surrogate_pair_costs_its_row(tmp_path: Path) -> None:
    rows = [ROWS[0], {**ROWS[1], "hint": ["a \ud800"]}, *ROWS[2:]]
    with pytest.warns(LeftOut, match=r"line 2 is left out, .* \\ud800: correct"):
        found = ids(SUMS, lines(tmp_path / "half.jsonl", rows))
    assert sorted(n for split in found.values() for n in split) == [0, *range(2, 40)]


def test_a_local_file_needs_no_hub(tmp_path: Path) -> None:
    path = str(lines(tmp_path / "all.jsonl", ROWS))
    found = Columns(prompt="question", data={"right": "answer"}, id="key").problems(path, "dev")
    assert [*found] == [*SUMS.problems(path, "dev")]
    with pytest.raises(ConfigError, match="without a hub needs the path"):
        Columns().problems(None, "train")
    with pytest.raises(ConfigError, match=r"nothing\.jsonl does not exist: name a file"):
        Columns().problems(str(tmp_path / "nothing.jsonl"), "train")


def test_a_mark_before_any_line_is_no_part_of_it(tmp_path: Path) -> None:
    whole = [f"\ufeff{json.dumps(row)}\r\n" for row in ROWS]  # as of files that were put together
    (tmp_path / "marked.jsonl").write_bytes("".join(whole).encode())
    assert ids(SUMS, tmp_path / "marked.jsonl") == ids(SUMS, lines(tmp_path / "all.jsonl", ROWS))


def test_a_json_file_without_rows(tmp_path: Path) -> None:
    (tmp_path / "bad.json").write_text("7")
    with pytest.raises(TaskError, match="line 1 has no column 'question', none: name another"):
        SUMS.problems(tmp_path / "bad.json", "train")


def test_rows_with_empty_cells_are_left_out(tmp_path: Path) -> None:
    path = lines(tmp_path / "all.jsonl", [{**ROWS[0], "answer": None}, *ROWS[1:], {"key": 9}])
    few = replace(SUMS, skip_empty=True, most=40)
    assert sorted(n for split in ids(few, path).values() for n in split) == [*range(1, 40)]
    with pytest.raises(TaskError, match="line 41 has no column 'question', only key"):
        replace(few, most=None).problems(path, "train")


def test_of_each_split_the_first_rows_are_read(tmp_path: Path) -> None:
    found = ids(replace(SUMS, most=2), parted(tmp_path))
    assert found == {"train": [0, 1], "dev": [20, 21], "test": [30, 31]}


def test_a_split_that_is_not_there(tmp_path: Path) -> None:
    lines(tmp_path / "train.jsonl", ROWS)
    lines(tmp_path / "eval.jsonl", ROWS)
    with pytest.raises(ConfigError, match="has no split 'validation', only eval, train: name"):
        SUMS.problems(tmp_path, "train")
    with pytest.raises(ConfigError, match="does not exist"):
        SUMS.problems(tmp_path / "nothing", "train")


def test_a_row_that_is_repeated_is_one_problem(tmp_path: Path) -> None:
    path = lines(tmp_path / "twice.jsonl", [ROWS[0], ROWS[0]])
    assert len([one for split in SPLITS for one in SUMS.problems(path, split)]) == 1


def test_copies_that_the_library_wrote(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
    made = datasets.Dataset.from_list
    parts = {"train": made(ROWS[:20]), "validation": made(ROWS[20:30]), "test": made(ROWS[30:])}
    datasets.DatasetDict(parts).save_to_disk(str(tmp_path / "saved"))
    made(ROWS).save_to_disk(str(tmp_path / "one"))
    (tmp_path / "parquet").mkdir()
    for name, part in parts.items():
        part.to_parquet(str(tmp_path / "parquet" / f"{name}-00000-of-00001.parquet"))
    wanted = {"train": [*range(20)], "dev": [*range(20, 30)], "test": [*range(30, 40)]}
    assert ids(SUMS, tmp_path / "saved") == ids(SUMS, tmp_path / "parquet") == wanted
    assert ids(SUMS, tmp_path / "one") == ids(SUMS, lines(tmp_path / "all.jsonl", ROWS))


def test_a_hub_is_fetched_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The library takes a folder for a hub's repository."""
    datasets = pytest.importorskip("datasets", reason="needs the extra datasets")
    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    home = parted(tmp_path / "sums")
    source = Columns(hub=str(home), prompt="question", data={"right": "answer"}, id="key")
    found = {split: [one.id for one in source.problems(None, split)] for split in SPLITS}
    assert found == {split: [str(n) for n in numbers] for split, numbers in ids(SUMS, home).items()}
    assert [*(tmp_path / "cache").iterdir()]
    lacking = Columns(hub=str(tmp_path / "nothing"), prompt="question")
    with pytest.raises(ConfigError, match=r"can't be fetched \("):
        lacking.problems(None, "train")


PROBLEM = {
    "prompt.md": "# Add\n\nWrite `add(a, b)`.\n",
    "test_solution.py": "from solution import add\n\ndef test_add():\n    assert add(1, 2) == 3\n",
}


def put(home: Path, files: dict[str, str]) -> None:
    home.mkdir(parents=True)
    for name, text in files.items():
        (home / name).write_text(text)


def test_a_folder_of_problems(tmp_path: Path) -> None:
    put(tmp_path / "add", {**PROBLEM, "solution.py": "def add(a, b): ..."})
    put(tmp_path / "sum", {**PROBLEM, "starter.py": "def add(a, b):\n"})
    put(tmp_path / ".git", {})
    found = {one.id: one for split in SPLITS for one in folder(tmp_path, split)}
    assert [*found] == ["add", "sum"]
    assert found["add"].prompt == "# Add\n\nWrite `add(a, b)`."
    tests = PROBLEM["test_solution.py"]
    assert found["add"].data == {"pytest": tests, "reference": "def add(a, b): ..."}
    assert found["sum"].data == {"pytest": tests, "starter": "def add(a, b):\n"}
    assert all(one.split == split_of(one.id) for one in found.values())
    assert [*own(tmp_path, "train", ())] == [*folder(tmp_path, "train")]


def test_folders_named_as_splits(tmp_path: Path) -> None:
    for name in SPLITS:
        put(tmp_path / name / f"add_{name}", PROBLEM)
    assert [one.id for one in folder(tmp_path, "dev")] == ["add_dev"]
    put(tmp_path / "test" / "add_dev", PROBLEM)
    with pytest.raises(TaskError, match="has two problems 'add_dev': rename one"):
        folder(tmp_path, "dev")


@pytest.mark.parametrize("name", PROBLEM)
def test_a_folder_that_lacks_a_file(tmp_path: Path, name: str) -> None:
    put(tmp_path / "add", {other: text for other, text in PROBLEM.items() if other != name})
    with pytest.raises(TaskError, match=f"add/{name} can't be read .*: each problem has"):
        folder(tmp_path, "train")


def test_a_folder_of_nothing(tmp_path: Path) -> None:
    with pytest.raises(TaskError, match="has no problems: give each a folder with prompt"):
        folder(tmp_path, "train")


_CELL = st.text(st.characters(exclude_categories=["Cs"], exclude_characters="\r"), max_size=12)


@given(st.lists(st.tuples(_CELL.filter(bool), _CELL, _CELL), min_size=1, max_size=4), st.booleans())
def test_cells_of_a_csv_are_read_back(written: list[tuple[str, ...]], packed: bool) -> None:
    """As Python and spreadsheets write them: a mark (BOM), \\r\\n, line breaks in quotes."""
    names = ("question", "key", "", "answer")
    text = io.StringIO(newline="")
    writer = csv.writer(text)
    writer.writerows([names, *((one[0], one[1], "index", one[2]) for one in written)])
    data = f"\ufeff{text.getvalue()},,,\r\n\r\n".encode()
    with TemporaryDirectory() as folder:
        path = Path(folder, "data.csv.gz" if packed else "data.CSV")
        path.write_bytes(gzip.compress(data) if packed else data)
        found = [tuple(row.values()) for _, row in rows("", path)]
    assert found == [tuple(cell or None for cell in one) for one in written]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("question,question\n", "has two columns 'question': rename one"),
        ("question,answer\na,b,c\n", "line 2 has 3 cells below 2 names"),
        ('question,answer\n"a\nb', "line 3 is not CSV"),
        ('question,answer\n"a"b,c\n', "line 2 is not CSV"),
        ("answer\na\n", "row 1 has no column 'question', only answer"),
        ("question,answer\n,b\n", "row 1 has an empty cell in column 'question'"),
        ("question,answer\na\n", "row 1 has an empty cell in column 'answer'"),
    ],
)
def test_a_csv_that_is_none_is_named(text: str, why: str, tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(text)
    source = Columns(prompt="question", data={"right": "answer"})
    with pytest.raises(TaskError, match=re.escape(why)):
        source.problems(tmp_path / "data.csv", "train")


def test_a_long_cell_of_a_csv(tmp_path: Path) -> None:
    (tmp_path / "data.csv").write_text(f"question\n{'a' * 200_000}\n")
    ((_, row),) = rows("", tmp_path / "data.csv")
    assert len(row["question"]) == 200_000
