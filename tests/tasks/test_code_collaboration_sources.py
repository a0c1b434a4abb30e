"""HumanEval's and CoopHumanEval's rows become problems, from every kind of copy, or say why not."""

from __future__ import annotations

import ast
import gzip
import hashlib
import json
import os
import string
import subprocess
import sys
import warnings
from collections import Counter
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from orchestry import Problem
from orchestry.core.errors import ConfigError, TaskError
from orchestry.core.types import SPLITS
from orchestry.task.datasets import split_of
from orchestry.task.registry import load_task

load_task("code_collaboration")
SOURCES = import_module("orchestry_tasks.code_collaboration.sources")
FIXTURES = Path(__file__).parent.parent / "fixtures" / "humaneval"
HUMANEVAL = FIXTURES / "humaneval.jsonl"
COOP = FIXTURES / "coophumaneval.json"
ROWS: list[dict[str, str]] = [json.loads(line) for line in HUMANEVAL.read_text().splitlines()]
MISSING = 'pip install "orchestry-marl\\[datasets\\]"'

COOP_ANSWERS = {
    "ripe_weight": "def ripe_weight(w, r):\n    return sum(x for x, y in zip(w, r) if y)\n",
    "longest_dry_spell": "def longest_dry_spell(rain):\n"
    "    return max(map(len, ''.join('x' if r else '.' for r in rain).split('x')))\n",
    "swap_ends": "def swap_ends(row):\n    return row[-1:] + row[1:-1] + row[: len(row) > 1]\n",
}


def loaded(bank: str, path: Path | None) -> dict[str, Problem]:
    """All problems by id, after a look that each split has its own."""
    found: dict[str, Problem] = {}
    for split in SPLITS:
        problems = SOURCES.problems(bank, path, split)
        assert all(p.split == split == split_of(p.id) for p in problems)
        found |= {problem.id: problem for problem in problems}
    return found


def written(folder: Path, *rows: Any) -> Path:
    """A file of these rows, of a name that tells its content."""
    text = "".join(json.dumps(row) + "\n" for row in rows)
    path = folder / f"{hashlib.sha256(text.encode()).hexdigest()[:16]}.jsonl"
    path.write_text(text, encoding="utf-8")
    return path


def run(code: str, check: str, entry_point: str) -> str:
    """What `check` says of the function, both in a process, each with names of its own."""
    program = (
        "import json, sys\ncode, check, name = json.load(sys.stdin)\none, other = {}, {}\n"
        "exec(code, one)\nexec(check, other)\nother['check'](one[name])\n"
    )
    done = subprocess.run(
        [sys.executable, "-I", "-c", program],
        input=json.dumps([code, check, entry_point]),
        capture_output=True,
        text=True,
        timeout=30,
    )
    return done.stderr.strip().rpartition("\n")[2] if done.returncode else "passed"


def verdict(problem: Problem, function: str) -> str:
    data = problem.data
    return run(f"{data['preamble']}\n{function}", data["check"], data["entry_point"])


# --- what a row becomes -------------------------------------------------------------------------


def test_a_row_becomes_a_problem() -> None:
    problem = loaded("humaneval", HUMANEVAL)["Garden_0"]
    assert problem.prompt == (
        "Give the positions of the count tallest plants, the tallest first.\n"
        "Of equally tall plants the earlier one comes first.\n"
        ">>> tallest_rows([3, 9, 4])\n[1, 2]\n>>> tallest_rows([5, 5, 5], 1)\n[0]"
    )
    data = dict(problem.data)
    assert data.pop("check").startswith("from typing import List\n\ndef check(candidate):\n")
    assert "tallest_rows" in data.pop("aux_goal")
    assert "tallest_rows" in data.pop("main_goal")
    signature = "def tallest_rows(heights: List[int], count: int=2) -> List[int]:"
    assert data == {
        "entry_point": "tallest_rows",
        "signature": signature,
        "preamble": "from typing import List",
        "aux_signature": "def aux(heights: List[int], count: int=2):",
        "reference": f"{signature}\n{ROWS[0]['canonical_solution']}",
    }


@pytest.mark.parametrize(("bank", "path"), [("humaneval", HUMANEVAL), ("coophumaneval", COOP)])
def test_who_writes_alone_is_shown_the_text_in_the_function(bank: str, path: Path) -> None:
    task = load_task("code_collaboration", options={"bank": bank, "path": str(path)})
    for problem in loaded(bank, path).values():
        asked = task.observe_single(problem)
        code = asked.partition("```python\n")[2].partition("```")[0]
        (function,) = (
            one
            for one in ast.parse(code).body
            if isinstance(one, ast.FunctionDef) and one.name == problem.data["entry_point"]
        )
        assert ast.get_docstring(function) == problem.prompt
        assert asked.count(problem.prompt.partition("\n")[0]) == 1
    quoting = problem.model_copy(update={"prompt": 'Give """ three quotes.'})
    assert "'''" in task.observe_single(quoting)


def test_a_preamble_keeps_imports_constants_and_helpers() -> None:
    found = loaded("humaneval", HUMANEVAL)
    preamble = found["Garden_1"].data["preamble"]
    assert preamble.startswith("import string\ndef hedge(text: str):\n")
    assert "# Only lower case is moved." in preamble
    assert "unhedge" not in preamble
    assert found["Garden_2"].data["preamble"] == ""
    assert found["Garden_3"].data["preamble"] == "LITRES = 10\nimport math"


def test_a_description_may_stand_behind_an_import_and_keeps_its_escapes() -> None:
    found = loaded("humaneval", HUMANEVAL)
    assert found["Garden_3"].prompt.startswith("Each bed needs as many litres")
    assert found["Garden_4"].prompt.endswith(r"'oak\n3'")


@pytest.mark.parametrize("row", ROWS, ids=[row["task_id"] for row in ROWS])
def test_references_pass_and_others_fail(row: dict[str, str]) -> None:
    problem = loaded("humaneval", HUMANEVAL)[row["task_id"].replace("/", "_")]
    assert verdict(problem, problem.data["reference"]) == "passed"
    wrong = f"{problem.data['signature']}\n    return [None]\n"
    assert "Error" in verdict(problem, wrong)
    assert "METADATA" not in problem.data["check"]
    assert "assert True" not in problem.data["check"]


def test_a_test_that_names_the_function_does_not_compare_the_candidate_with_itself() -> None:
    """As HumanEval/33 does; there the reference is known."""
    problem = loaded("humaneval", HUMANEVAL)["Garden_2"]
    fooling = (
        "def prune(b):\n    return {3: [0], 0: []}.get(len(b)) if b != [1, 2, 2] else [1, 2]\n"
    )
    assert verdict(problem, fooling) == "AssertionError: Error"


def test_coophumaneval_has_no_references() -> None:
    found = loaded("coophumaneval", COOP)
    assert sorted(found) == ["CoopGarden_0", "CoopGarden_1", "coophumaneval_swap_ends_09f76cfc"]
    for problem in found.values():
        assert "reference" not in problem.data
        name = problem.data["entry_point"]
        assert verdict(problem, COOP_ANSWERS[name]) == "passed"
        assert "Error" in verdict(problem, f"def {name}(*args):\n    return None\n")


def test_no_agent_sees_the_tests() -> None:
    """They stand in `check` and nowhere else."""
    for problem in [
        *loaded("humaneval", HUMANEVAL).values(),
        *loaded("coophumaneval", COOP).values(),
    ]:
        others = {key: text for key, text in problem.data.items() if key != "check"}
        assert "candidate" not in json.dumps([problem.prompt, others])
        assert "candidate(" in problem.data["check"]


# --- splits -------------------------------------------------------------------------------------


def test_the_splits_of_humaneval_are_fixed() -> None:
    splits = [split_of(f"HumanEval_{number}") for number in range(164)]
    assert Counter(splits) == {"train": 104, "dev": 28, "test": 32}
    assert hashlib.sha256("".join(splits).encode()).hexdigest()[:16] == "a6c467bac04101c6"


def test_more_rows_move_none(tmp_path: Path) -> None:
    few = loaded("humaneval", written(tmp_path, *ROWS[2:]))
    assert few.items() <= loaded("humaneval", HUMANEVAL).items()
    assert len(few) == len(ROWS) - 2


# --- where rows come from -----------------------------------------------------------------------


def test_kinds_of_file_are_alike(tmp_path: Path) -> None:
    for name, text in {
        "rows.json": json.dumps(ROWS),
        "lines.json": HUMANEVAL.read_text(),
        "blank.jsonl": "\n" + HUMANEVAL.read_text() + "\n\n",
        "marked.jsonl": "\ufeff" + HUMANEVAL.read_text(),
    }.items():
        (tmp_path / name).write_text(text, encoding="utf-8")
        packed = tmp_path / f"{name}.gz"
        packed.write_bytes(gzip.compress(text.encode()))
        assert loaded("humaneval", tmp_path / name) == loaded("humaneval", HUMANEVAL)
        assert loaded("humaneval", packed) == loaded("humaneval", HUMANEVAL)


def test_lines_of_windows_are_lines(tmp_path: Path) -> None:
    rows = [{key: text.replace("\n", "\r\n") for key, text in row.items()} for row in ROWS]
    assert loaded("humaneval", written(tmp_path, *rows)) == loaded("humaneval", HUMANEVAL)


@pytest.mark.slow  # datasets takes seconds to import
def test_parquet_and_saved_folders_are_alike(tmp_path: Path) -> None:
    datasets = pytest.importorskip("datasets")
    rows = datasets.Dataset.from_list(ROWS)
    rows.to_parquet(str(tmp_path / "rows.parquet"))
    rows.save_to_disk(str(tmp_path / "one"))
    datasets.DatasetDict({"test": rows}).save_to_disk(str(tmp_path / "splits"))
    for name in ("rows.parquet", "one", "splits"):
        assert loaded("humaneval", tmp_path / name) == loaded("humaneval", HUMANEVAL)
    mixed = datasets.Dataset.from_list(json.loads(COOP.read_text()))  # a missing id becomes None
    mixed.save_to_disk(str(tmp_path / "coop"))
    assert loaded("coophumaneval", tmp_path / "coop") == loaded("coophumaneval", COOP)


@pytest.mark.slow  # datasets takes seconds to import
def test_broken_copies_are_named(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    broken, empty = tmp_path / "rows.parquet", tmp_path / "folder"
    broken.write_text("no parquet")
    empty.mkdir()
    with pytest.raises(TaskError, match=r"rows\.parquet can't be read .*: fetch it again"):
        loaded("humaneval", broken)
    with pytest.raises(ConfigError, match=r"folder was not written by datasets\.save_to_disk"):
        loaded("humaneval", empty)


@pytest.mark.slow
def test_a_hub_out_of_reach_is_told(tmp_path: Path) -> None:
    pytest.importorskip("datasets")
    code = (
        "from orchestry.task.registry import load_task; from importlib import import_module\n"
        "load_task('code_collaboration')\n"
        "sources = import_module('orchestry_tasks.code_collaboration.sources')\n"
        "sources.problems('coophumaneval', None, 'train')"
    )
    offline = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, "-c", code], env=offline, capture_output=True, text=True, timeout=120
    )
    last = done.stderr.strip().rpartition("\n")[2]
    assert last.startswith(
        "orchestry.core.errors.ConfigError: OpenMLRL/CoopHumanEval can't be fetched "
        "(ConnectionError: "
    )
    assert last.endswith(": go online, or name a local copy in options.path")


@pytest.mark.skipif(find_spec("datasets") is not None, reason="the extra is installed")
def test_a_missing_extra_is_named(tmp_path: Path) -> None:
    (tmp_path / "rows.parquet").write_bytes(b"PAR1")
    (tmp_path / "folder").mkdir()
    for path in (None, tmp_path / "rows.parquet", tmp_path / "folder"):
        with pytest.raises(ConfigError, match=f"is not installed, .*: {MISSING}"):
            loaded("humaneval", path)


# --- what is wrong with a copy ------------------------------------------------------------------


def test_a_wrong_path_is_a_config_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"options\.path .*none\.jsonl does not exist: name"):
        loaded("humaneval", tmp_path / "none.jsonl")
    for bank in ("own", "humaneval", "coophumaneval"):
        team = load_task("code_collaboration", options={"bank": bank, "path": "/nope"})
        with pytest.raises(ConfigError, match=r"^options\.path /nope does not exist: name"):
            team.problems("train")
    (tmp_path / "rows.xlsx").write_text("prompt,test")
    with pytest.raises(ConfigError, match=r"rows\.xlsx is of no kind known here: give \.jsonl"):
        loaded("humaneval", tmp_path / "rows.xlsx")


def test_a_copy_of_a_data_set_given_as_the_own_bank_is_told_the_option() -> None:
    team = load_task("code_collaboration", options={"path": str(HUMANEVAL)})
    with pytest.raises(TaskError, match=r"line 1 is not .* needs options\.bank: humaneval"):
        team.problems("train")


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("cut.jsonl.gz", gzip.compress(b'{"a": 1}', mtime=0)[:-9], "can't be read"),
        ("no.json.gz", b"{}", r"can't be read \(Not a gzipped file"),
        ("latin.jsonl", b'{"prompt": "\xe9"}', "can't be read"),
        ("cut.json", b'[{"prompt": ', r"cut\.json is not JSON"),
        ("lines.jsonl", HUMANEVAL.read_bytes() + b"\n{", r"lines\.jsonl, line 7 is not JSON"),
        ("list.json", b"[1]", r"list\.json, row 1 is no object"),
        ("empty.jsonl", b"\n", "empty.jsonl has no rows"),
    ],
)
def test_an_unreadable_file_is_named(
    tmp_path: Path, name: str, content: bytes, message: str
) -> None:
    (tmp_path / name).write_bytes(content)
    with pytest.raises(TaskError, match=message):
        loaded("humaneval", tmp_path / name)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"test": None}, r"line 2 has no text in 'test', only in \['task_id', 'prompt',"),
        ({"entry_point": " "}, r"line 2 has no text in 'entry_point'"),
        ({"entry_point": "a b\n"}, r"line 2: entry_point 'a b\\n' names no function"),
        ({"prompt": "def prune(b:"}, r"line 2, prompt is no Python"),
        ({"prompt": "def prune(b):\n    pass"}, r"line 2: prune has no docstring"),
        ({"prompt": 'def other(b):\n    """Do."""'}, r"line 2 defines no function prune"),
        ({"test": "def check(candidate:"}, r"line 2, test is no Python"),
        ({"test": "assert True"}, r"line 2, test defines no function check"),
        ({"test": "def check():\n    pass"}, r"line 2, test: check must take one argument"),
        ({"canonical_solution": "return 1"}, r"line 2, canonical_solution is no Python"),
        ({"task_id": "Garden/0"}, r"line 2: a second row of the id 'Garden_0'"),
    ],
)
def test_a_wrong_row_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    path = written(tmp_path, ROWS[0], {**ROWS[2], **change})
    with pytest.raises(TaskError, match=rf"\.jsonl, {message}"):
        loaded("humaneval", path)


PIECES = st.sampled_from(
    [
        "def f(a):\n",
        "def f(a, /, *b, c=1, **d) -> 'int':\n",
        '    """x"""\n',
        "    return 1\n",
        "def check(c):\n",
        "    assert c(1)\n",
        "f(1)\n",
        "import os\n",
        "@dec\n",
        "\x00",
        "\\",
        "é\u2028",
    ]
)
TEXTS = st.lists(PIECES | st.text(string.printable, max_size=8), max_size=5).map("".join)
FIELDS = st.sampled_from(["task_id", "prompt", "test", "entry_point", "canonical_solution"])
PLAIN = {"prompt": 'def f(a):\n    """x"""', "test": "def check(c):\n    c(1)", "entry_point": "f"}


@settings(max_examples=150, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(change=st.dictionaries(FIELDS, TEXTS | st.none() | st.integers(), max_size=2))
def test_any_row_is_a_problem_or_a_task_error(tmp_path: Path, change: dict[str, Any]) -> None:
    found, fault = {}, ""
    try:
        found = loaded("humaneval", written(tmp_path, {**PLAIN, **change}))
    except TaskError as error:
        fault = str(error)
    assert "\n" not in fault
    assert len(found) == (".jsonl, line 1" not in fault)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of escapes in the drawn texts
        for problem in found.values():
            ast.parse(problem.data["check"])
            ast.parse(f"{problem.data['aux_signature']}\n    pass")


def test_loading_runs_nothing(tmp_path: Path) -> None:
    mark = tmp_path / "ran"
    trap = f"open({str(mark)!r}, 'w')\n"
    row = {key: trap + text for key, text in ROWS[2].items() if key in ("prompt", "test")}
    (problem,) = loaded("humaneval", written(tmp_path, {**ROWS[2], **row})).values()
    assert not mark.exists()
    assert problem.data["preamble"] == ""
