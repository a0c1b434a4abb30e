"""Reading a task's problems: what is skipped, and how a bad file is named."""

from __future__ import annotations

import json
import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestry.core.errors import LeftOut, TaskError
from orchestry.task.base import read_problems

FIRST = {"id": "a", "prompt": "one"}
SECOND = {"id": "b", "prompt": "two", "data": {"n": 2}}


def write(path: Path, *lines: object) -> Path:
    path.write_bytes("\n".join(json.dumps(line) for line in lines).encode())
    return path


def test_only_the_asked_split_is_read_in_order(tmp_path: Path) -> None:
    path = write(tmp_path / "p.jsonl", SECOND, {**FIRST, "id": "c", "split": "dev"}, FIRST)
    assert [problem.id for problem in read_problems(path, "train")] == ["b", "a"]
    assert [problem.id for problem in read_problems(path, "dev")] == ["c"]
    assert read_problems(path, "test") == ()


def test_blank_lines_are_left_out_and_counted(tmp_path: Path) -> None:
    path = tmp_path / "p.jsonl"
    path.write_text(f"\n{json.dumps(FIRST)}\r\n  \n{json.dumps(SECOND)}\n\n")
    assert [problem.id for problem in read_problems(path, "train")] == ["a", "b"]
    path.write_text(f"\n{json.dumps(FIRST)}\n\nno JSON\n")
    with pytest.raises(TaskError, match="line 4 is not a problem"):
        read_problems(path, "train")


def test_a_line_separator_inside_a_string_ends_no_line(tmp_path: Path) -> None:
    prompt = "one\u2028two\u2029three\x85four"
    path = tmp_path / "p.jsonl"
    path.write_text(json.dumps({**FIRST, "prompt": prompt}, ensure_ascii=False), encoding="utf-8")
    assert [problem.prompt for problem in read_problems(path, "train")] == [prompt]


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b'{"id": "a", "prompt": "x"', r"line 1 is not a problem \(Expecting ',' delimiter"),
        (b'{"id": "a"}', r"line 1 is not a problem \(prompt: Field required\): write a JSON"),
        (b'{"id": 3, "prompt": "x"}', r"\(id: Input should be a valid string, found 3\)"),
        (b'{"id": "a", "prompt": "x", "spilt": "dev"}', r"\(spilt: Extra inputs"),
        (b"[1]", r"line 1 is not a problem \(Input should be"),
        (b'\n{"id": "\xe4"}\n', r"line 2 is not UTF-8: save the file as UTF-8"),
    ],
)
def test_a_bad_line_is_named_with_its_fix(tmp_path: Path, content: bytes, message: str) -> None:
    path = tmp_path / "p.jsonl"
    path.write_bytes(content)
    with pytest.raises(TaskError, match=message) as caught:
        read_problems(path, "train")
    assert str(caught.value).startswith(f"{path}, line")
    assert "\n" not in str(caught.value)


def test_a_missing_file_is_named_with_its_fix(tmp_path: Path) -> None:
    path = tmp_path / "problems.jsonl"
    with pytest.raises(TaskError, match=r"No such file or directory.*one JSON object per line"):
        read_problems(path, "train")
    path.mkdir()
    with pytest.raises(TaskError, match=r"problems\.jsonl can't be read"):
        read_problems(path, "train")


def test_half_a_surrogate_pair_costs_its_problem(tmp_path: Path) -> None:
    half = {**SECOND, "data": {"deep": [{"text": "a \ud83d"}]}}
    path = write(tmp_path / "p.jsonl", FIRST, half, {**FIRST, "id": "c", "prompt": "\U0001f600"})
    with pytest.warns(LeftOut, match=r"p\.jsonl, line 2 is left out, since .* \\ud83d: correct"):
        assert [problem.id for problem in read_problems(str(path), "train")] == ["a", "c"]


TEXTS = st.text(st.sampled_from("a \u2028\u2029\x85\x0b\x0c\x1c\x1d\x1e\ufeff\r\n\ud83d\ude00é"))


@given(st.lists(TEXTS, min_size=1, max_size=5), st.booleans(), st.sampled_from(["\n", "\r\n"]))
def test_any_text_is_read_back_or_costs_its_problem_alone(
    tmp_path_factory: pytest.TempPathFactory, texts: list[str], marked: bool, end: str
) -> None:
    """Line separators of any kind, marks (BOM), and halves of surrogate pairs."""
    rows = [{"id": f"p{n}", "prompt": text, "data": {"t": text}} for n, text in enumerate(texts)]
    found = [json.dumps(row, ensure_ascii=False) for row in rows]
    path = tmp_path_factory.mktemp("bank") / "p.jsonl"
    whole_file = "\ufeff" * marked + end.join(found)
    path.write_bytes(whole_file.encode("utf-8", "backslashreplace"))  # halves as JSON has them
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        read = {one.id: one.prompt for one in read_problems(path, "train")}
    # two halves that meet are a pair
    paired = [text.encode("utf-16", "surrogatepass").decode("utf-16", "replace") for text in texts]
    lost = [n for n, text in enumerate(paired) if "\ufffd" in text]
    assert read == {f"p{n}": text for n, text in enumerate(paired) if n not in lost}
    named = [str(one.message).partition(", line ")[2].partition(" is left out")[0] for one in said]
    assert named == [str(n + 1) for n in lost]


LINES = st.lists(
    st.tuples(st.sampled_from("abcdefghij"), st.sampled_from(["train", "dev", "test"])), max_size=8
)


@given(LINES)
def test_an_id_that_comes_twice_is_named_with_both_lines(
    tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, str]]
) -> None:
    problems = [{"id": name, "prompt": "?", "split": split} for name, split in lines]
    path = write(tmp_path_factory.mktemp("bank") / "p.jsonl", *problems)
    ids = [name for name, _ in lines]
    twice = [place for place, name in enumerate(ids) if name in ids[:place]]
    if not twice:
        assert [problem.id for problem in read_problems(path, "train")] == [
            name for name, split in lines if split == "train"
        ]
        return
    first, second = ids.index(ids[twice[0]]) + 1, twice[0] + 1
    with pytest.raises(TaskError, match=f"lines {first} and {second} have the same id"):
        read_problems(path, "train")
