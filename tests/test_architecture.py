"""The house keeps its shape: layers, a light start, a small facade, short files and functions."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

import orchestry
from orchestry.core.config import RunConfig, validate
from orchestry.core.resolve import read_config_file
from orchestry.task.registry import load_task

ROOT = Path(__file__).parent.parent
CODE = sorted([*(ROOT / "orchestry").rglob("*.py"), *(ROOT / "tasks").rglob("*.py")])
TASKS = sorted((ROOT / "tasks").rglob("*.py"))
HEAVY = (
    "torch",
    "numpy",
    "transformers",
    "anthropic",
    "openai",
    "xllamacpp",
    "rich",
    "genai_prices",
)


LINES = {
    "backends": 14_100,
    "cli": 6_700,
    "core": 4_500,
    "engine": 6_800,
    "ext": 11_700,
    "judge": 1_000,
    "models": 4_800,
    "report": 6_500,
    "rollout": 1_700,
    "sandbox": 3_700,
    "store": 2_900,
    "task": 7_700,
}
"""Most lines of each room. What raises one says so here; what makes a room smaller lowers it."""
MODULES = 160
"""Of ours that a search with the fake provider loads; it may only fall."""
SHARED_NAMES = 48
"""Class names that stand in two files or more; it may only fall."""


def names(paths: list[Path]) -> list[str]:
    return [str(path.relative_to(ROOT)) for path in paths]


def imported(path: Path) -> Iterator[str]:
    """The absolute modules that a file imports, at whatever depth of its code."""
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.level == 0:
            yield node.module or ""


def test_layers_import_downward_only() -> None:
    script = Path(sys.executable).with_name("lint-imports")
    done = subprocess.run([script, "--no-cache"], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout[done.stdout.find("Broken contracts") :] + done.stderr
    assert "Backends know nothing of each other KEPT" in done.stdout


def test_the_command_line_starts_light() -> None:
    code = f"import sys, orchestry.cli; print([m for m in {HEAVY} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_the_house_has_twelve_rooms_at_most() -> None:
    rooms = [
        path.name for path in (ROOT / "orchestry").iterdir() if (path / "__init__.py").exists()
    ]
    assert len(rooms) <= 12
    files = {path.name for path in (ROOT / "orchestry").iterdir() if path.is_file()}
    assert files == {"__init__.py", "__main__.py", "api.py", "py.typed"}


def test_a_search_loads_no_weights_and_no_extension(tmp_path: Path) -> None:
    """What `orchestry run --provider fake` imports of ours."""
    code = (
        "import sys; from orchestry.cli import main\n"
        "try: main(sys.argv[1:])\n"
        "except SystemExit as end: assert not end.code, end.code\n"
        "print(*[one for one in sys.modules if one.startswith('orchestry.')], sep='\\n')"
    )
    args = ["run", "--provider", "fake", "--episodes", "1", "--run-dir", str(tmp_path / "run")]
    command = [sys.executable, "-c", code, *args, "--json"]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    loaded = [line for line in done.stdout.splitlines() if line.startswith("orchestry.")]
    assert MODULES - 5 <= len(loaded) <= MODULES, "lower MODULES where fewer are loaded"
    aside = ("orchestry.ext.", "orchestry.backends.local", "orchestry.backends.ppo")
    assert [name for name in loaded if name.startswith(aside)] == []


def test_every_room_keeps_to_its_budget_of_lines() -> None:
    rooms = {path.name: [*path.rglob("*.py")] for path in (ROOT / "orchestry").iterdir()}
    lines = {
        name: sum(len(path.read_text(encoding="utf-8").splitlines()) for path in files)
        for name, files in rooms.items()
        if name in LINES
    }
    assert lines.keys() == LINES.keys()
    assert {name: count for name, count in lines.items() if count > LINES[name]} == {}
    slack = {name: LINES[name] - count for name, count in lines.items()}
    assert {name: left for name, left in slack.items() if left > 200} == {}, "lower the budget"


def test_few_class_names_stand_twice() -> None:
    found = Counter(
        node.name
        for path in (ROOT / "orchestry").rglob("*.py")
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_")
    )
    assert sum(count > 1 for count in found.values()) <= SHARED_NAMES


def test_the_facade_is_small_and_whole() -> None:
    assert len(orchestry.__all__) <= 37
    for name in orchestry.__all__:
        assert getattr(orchestry, name) is not None
    assert dir(orchestry) == sorted([*orchestry.__all__, "__version__"])
    assert issubclass(orchestry.ConfigError, orchestry.errors.OrchestryError)


def test_the_facade_shows_its_names_without_importing_them() -> None:
    code = (
        "import sys, orchestry; dir(orchestry); orchestry.errors.TaskError;"
        "print([name for name in sys.modules if name.startswith('orchestry.')])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['orchestry.core', 'orchestry.core.errors']"


@pytest.mark.parametrize("path", TASKS, ids=names(TASKS))
def test_tasks_import_only_the_facade(path: Path) -> None:
    assert [name for name in imported(path) if name.startswith("orchestry.")] == []
    assert [name for name in imported(path) if name.partition(".")[0] == "tasks"] == []
    tree = ast.parse(path.read_bytes())
    froms = [node for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)]
    taken = {name.name for node in froms if node.module == "orchestry" for name in node.names}
    assert taken <= {*orchestry.__all__}


def test_nothing_imports_tasks() -> None:
    folders = ("orchestry", "tests", "benchmarks")
    files = [
        path
        for folder in folders
        for path in (ROOT / folder).rglob("*.py")
        if re.search(r"^\s*(?:import|from)\b.*\btasks\b", path.read_text(), re.MULTILINE)
    ]  # reading the tree of each of a thousand files takes seconds
    guilty = [path for path in files if any(n.partition(".")[0] == "tasks" for n in imported(path))]
    assert names(guilty) == []


@pytest.mark.parametrize("path", CODE, ids=names(CODE))
def test_files_and_functions_are_short(path: Path) -> None:
    source = path.read_text(encoding="utf-8")
    assert len(source.splitlines()) <= 600
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            assert (node.end_lineno or 0) - node.lineno < 60, node.name


def test_json_lines_end_at_line_feeds_alone() -> None:
    """str.splitlines() also ends a line at U+2028 and its kind, which JSON may contain."""
    files = [*CODE, *(ROOT / "benchmarks").rglob("*.py")]
    guilty = [
        f"{path.relative_to(ROOT)}:{node.lineno}"
        for path in files
        for node in ast.walk(ast.parse(path.read_bytes()))
        if isinstance(node, ast.For | ast.ListComp | ast.GeneratorExp | ast.DictComp)
        and ".splitlines(" in (text := ast.unparse(node))
        and ("json.loads(" in text or "validate_json(" in text)
    ]
    assert guilty == []


def committed() -> list[Path]:
    """The files that git tracks; none where this is no checkout, as in a source distribution."""
    if not (ROOT / ".git").exists():
        return []
    done = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    files = [ROOT / name for name in done.stdout.decode().split("\0") if name]
    return [path for path in files if path.is_file()]


def test_no_committed_file_names_this_machine_or_a_registry() -> None:
    hosts = (r"pypi\.org", r"pythonhosted\.org", r"npmjs\.(?:org|com)", r"anaconda\.org")
    forbidden = re.compile("|".join([*hosts, rf"(?<![\w.~-])/{'work'}/"]).encode())
    guilty = [
        f"{path.relative_to(ROOT)}: {found[0].decode()}"
        for path in committed()
        if path != Path(__file__) and (found := forbidden.search(path.read_bytes()))
    ]
    assert guilty == []


def test_the_shipped_config_shows_the_defaults(tmp_path: Path) -> None:
    """Every key that configs/api.yaml shows exists, and has the value that it shows."""
    shipped = ROOT / "configs" / "api.yaml"
    assert validate(read_config_file(shipped)) == RunConfig()
    shown = tmp_path / "shown.yaml"
    shown.write_text(
        re.sub(r"^# (?!yaml-)", "", shipped.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    assert read_config_file(shown)
    assert validate(read_config_file(shown)) == RunConfig()


def test_the_local_configs_are_those_of_a_run_and_show_defaults(tmp_path: Path) -> None:
    """What is set in configs/local.yaml may differ from the defaults; what is shown does not."""
    shipped = ROOT / "configs" / "local.yaml"
    assert validate(read_config_file(shipped)).learn == RunConfig().learn
    shown = tmp_path / "shown.yaml"
    shown.write_text(
        re.sub(r"^# (?!yaml-)", "  ", shipped.read_text(encoding="utf-8"), flags=re.MULTILINE)
    )
    assert len(read_config_file(shown)["learn"]) > len(read_config_file(shipped)["learn"])
    assert validate(read_config_file(shown)).learn == RunConfig().learn
    for name in ("local_cpu", "quick_test"):
        preset = validate(read_config_file(ROOT / "configs" / f"{name}.yaml"))
        assert (preset.backend, preset.provider.model) == ("local", "embedded")
        assert preset.episodes // preset.learn.every >= 5
    seeds = validate(read_config_file(ROOT / "configs" / "seeds.yaml"))
    search = seeds.search
    assert (search.beam_width, search.k_samples, search.exploration) == (10, 5, 0.1)
    load_task(seeds.task, weights=seeds.weights)  # its parts are the task's
    laptop = validate(read_config_file(ROOT / "configs" / "laptop.yaml"))
    assert laptop.provider.name == "embedded"
    assert load_task(laptop.task, options=laptop.options).problems("train")
    writing = validate(read_config_file(ROOT / "configs" / "local_writing.yaml"))
    assert (writing.backend, writing.task, writing.episodes // writing.learn.every) == (
        "local",
        "tldr",
        62,
    )
