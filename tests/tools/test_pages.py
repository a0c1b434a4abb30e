"""What the pages tell a reader to type can be typed, and their example works."""

from __future__ import annotations

import functools
import json
import re
import shlex
import sys
from collections import Counter
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from pkgutil import resolve_name
from typing import Any

import pytest
from typer.core import TyperCommand, TyperGroup

import orchestry
from orchestry.cli import group, main
from orchestry.core.config import validate
from orchestry.core.resolve import settings_of
from orchestry.store.run import load_run
from orchestry.task.registry import load_task
from tools.reference import commands

ROOT = Path(__file__).resolve().parents[2]
PAGES = [  # but for RESULTS.md, in which models speak
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    ROOT / "CHANGELOG.md",
    ROOT / "behaviors" / "README.md",
    ROOT / "benchmarks" / "README.md",
    *sorted(page for page in ROOT.glob("docs/**/*.md") if page.name != "RESULTS.md"),
    *sorted(ROOT.glob("tasks/*/README.md")),
]
OTHERS = {
    "accelerate",
    "docker",
    "git",
    "just",
    "kubectl",
    "lint-imports",
    "mkdocs",
    "mypy",
    "pip",
    "pre-commit",
    "pytest",
}
OTHERS |= {"ray", "ruff", "sbatch", "scancel", "tensorboard", "vf-eval", "vllm", "wandb"}
"""Programs that are not ours."""
BLOCK = re.compile(r"^```(?:bash|sh)\n(.*?)^```", flags=re.MULTILINE | re.DOTALL)
BLOCKS = re.compile(r"^```.*?^```", flags=re.MULTILINE | re.DOTALL)
ENTRY_POINTS = "orchestry.tasks"
"""A group of entry points, not a module."""
INLINE = re.compile(r"`orchestry ([a-z][^`]*)`")


def shown() -> Iterator[tuple[str, list[str]]]:
    """Every command in a shell block of the pages, as words, with the page that shows it."""
    for page in PAGES:
        for block in BLOCK.findall(page.read_text(encoding="utf-8")):
            for line in re.split(r"\n|&&|\|", block.replace("\\\n", " ")):
                words = shlex.split(line, comments=True)
                while words and re.match(r"\w+=", words[0]):  # a variable for this command alone
                    words = words[1:]
                if words and words[0] not in ("export", ".", "source"):
                    yield page.relative_to(ROOT).as_posix(), words


def named() -> Iterator[tuple[str, str]]:
    """Every command of ours that a sentence names, whole or in part, with its page."""
    for page in PAGES:
        for text in INLINE.findall(page.read_text(encoding="utf-8")):
            yield page.relative_to(ROOT).as_posix(), " ".join(text.split())


def dotted() -> Iterator[tuple[str, str]]:
    """Every name of ours that a sentence or an import of the pages has, with its page."""
    for page in PAGES:
        text, place = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        for name in re.findall(r"`(orchestry(?:\.\w+)+)", text):
            yield place, name
        for module, names in re.findall(r"from (orchestry[\w.]*) import ([\w, ]+)", text):
            yield from ((place, f"{module}.{name}") for name in names.replace(" ", "").split(","))


SHOWN, NAMED = list(shown()), sorted(set(named()))
DOTTED = sorted({(page, name) for page, name in dotted() if name != ENTRY_POINTS})


def test_every_page_of_commands_was_read() -> None:
    pages = {page for page, words in SHOWN if words[0] == "orchestry"}
    assert {"README.md", "docs/local.md", "docs/learning.md", "docs/write-a-task.md"} <= pages
    assert len(SHOWN) > 60
    assert len(NAMED) > 20
    assert len(DOTTED) > 10


@pytest.mark.parametrize(("page", "name"), DOTTED)
def test_a_name_in_a_sentence_exists(page: str, name: str) -> None:
    if name.startswith("orchestry_tasks."):
        load_task(name.split(".")[1])  # a task's modules are there once it is loaded
    resolve_name(name)


def test_the_api_page_has_every_name_of_the_facade() -> None:
    text = (ROOT / "docs" / "api.md").read_text(encoding="utf-8")
    there = {path.rpartition(".")[2] for path in re.findall(r"^::: (\S+)", text, re.MULTILINE)}
    assert not {*orchestry.__all__} - there - {"ConfigError", "OrchestryError"}  # of errors


@pytest.mark.parametrize(("page", "words"), SHOWN, ids=lambda item: str(item)[:60])
def test_a_command_can_be_typed(page: str, words: list[str]) -> None:
    program, *args = words
    if program == "orchestry":
        context = _parse(args)
        for key, value in settings_of(context.params.get("sets") or ()).items():
            validate({key: value})
    elif program in ("python", "python3"):
        assert _is_there(args), f"{page}: nothing to run in {' '.join(words)}"
    else:
        assert program in OTHERS, f"{page}: unknown program {program}"


@functools.cache
def _known() -> dict[str, TyperCommand | TyperGroup]:
    return {context.command_path: command for command, context in commands()}


@pytest.mark.parametrize(("page", "text"), NAMED)
def test_a_command_in_a_sentence_exists_with_its_options(page: str, text: str) -> None:
    known = _known()
    words = f"orchestry {text}".split()
    path = next((p for n in (3, 2) if (p := " ".join(words[:n])) in known), "")
    assert path, f"{page}: there is no command {' '.join(words)}"
    options = {option for param in known[path].params for option in param.opts}
    used = set(re.findall(r"--[a-z][\w-]*", text)) - {"--help"}
    assert used <= options, f"{page}: {path} has no {', '.join(used - options)}"


def test_a_path_in_a_sentence_exists() -> None:
    own = ("slogan", "regex", "my_team", "sums")
    written = {f"tasks/{name}/task.py" for name in own}  # by the reader, in an example
    for page in PAGES:
        paths = set(re.findall(r"`([\w.]+/[\w./]+\.py)`", page.read_text(encoding="utf-8")))
        places = (ROOT, ROOT / "orchestry", page.parent)
        missing = [p for p in paths - written if not any((at / p).exists() for at in places)]
        assert not missing, page


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_links_lead_somewhere_in_the_repository_too(page: Path) -> None:
    text = BLOCKS.sub("", page.read_text(encoding="utf-8"))
    links = re.findall(r"\]\(([^)#\s:]+)(?:#[^)]*)?\)", text)
    missing = [link for link in links if not (page.parent / link).exists()]
    assert not missing


def examples_of(page: str) -> dict[str, str]:
    """The marked blocks of a page, by their names."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    return dict(re.findall(r"<!-- example: (\S+) -->\n```\w+\n(.*?)```", text, re.DOTALL))


def typed(line: str, capsys: pytest.CaptureFixture[str], *more: str) -> None:
    """Runs a command as a user types it; it must succeed."""
    with pytest.raises(SystemExit) as exited:
        main([*shlex.split(line)[1:], *more])
    assert exited.value.code == 0, capsys.readouterr()


@pytest.mark.slow
def test_the_example_of_a_task_is_checked_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = examples_of("write-a-task.md")
    for name in ("task.py", "problems.jsonl"):
        path = tmp_path / "tasks" / "regex" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(examples[f"tasks/regex/{name}"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for line in examples["commands"].splitlines():
        typed(line, capsys)
    assert "Task regex keeps every rule." in capsys.readouterr().out
    [run] = (tmp_path / "runs").iterdir()
    assert json.loads((run / "summary.json").read_text())["episodes"] == 2


@pytest.mark.slow
def test_the_example_of_pytest_files_is_checked_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    examples = examples_of("write-a-task.md")
    for split in ("train", "dev", "test"):
        for name in ("prompt.md", "test_solution.py", "solution.py"):
            path = tmp_path / "problems" / split / f"stack_{split}" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(examples[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for line in examples["pytest-commands"].splitlines():
        typed(line, capsys)


@pytest.mark.slow
def test_the_example_of_a_file_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    examples = examples_of("write-a-task.md")
    Path("data.jsonl").write_text(examples["data.jsonl"], encoding="utf-8")
    for line in examples["from-commands"].splitlines():
        with pytest.raises(SystemExit) as exited:
            main(line.split()[1:])
        assert exited.value.code == 0, capsys.readouterr()


def test_the_example_of_a_game_is_checked_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("pettingzoo")
    pytest.importorskip("pygame")
    examples = examples_of("bridges.md")
    path = tmp_path / "tasks" / "xo" / "task.py"
    path.parent.mkdir(parents=True)
    path.write_text(examples["tasks/xo/task.py"], encoding="utf-8")
    script = tmp_path / "script.jsonl"
    script.write_text('{"agent": "player_1", "text": "4"}\n{"agent": "player_2", "text": "0."}\n')
    monkeypatch.chdir(tmp_path)
    fake = ["--provider", "fake", "--set", f"provider.fake.script={script}"]
    for line in examples["commands"].splitlines():
        typed(line, capsys, *(fake if line.split()[1] == "run" else []))
    [folder] = (tmp_path / "runs").iterdir()
    moves = [turn for one in load_run(folder).episodes for n in one.nodes for turn in n.turns]
    assert moves[0].messages[-1].content.startswith("The board, you are X: . . .")
    assert {turn.agent for turn in moves} == {"player_1", "player_2"}


@pytest.mark.slow
def test_the_example_of_a_program_is_attached_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp")
    examples = examples_of("your-agents.md")
    for name in ("app.py", "problems.jsonl"):
        (tmp_path / name).write_text(examples[name], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for line in examples["commands"].splitlines():
        own = re.sub(r"\bpython\b", shlex.quote(sys.executable), line)
        typed(own, capsys, *(["--provider", "fake"] if line.split()[1] == "run" else []))
    run = load_run(tmp_path / "runs" / "first")
    agents = Counter(t.agent for one in run.episodes for n in one.nodes for t in n.turns)
    assert agents["writer"] == agents["editor"] == 4 * run.config["search"]["k_samples"]
    assert all(0 < one.reward <= 1 for one in run.episodes)


@pytest.mark.slow
def test_the_example_of_a_function_is_checked_and_played(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("aiohttp")
    pytest.importorskip("openai")
    examples = examples_of("your-agents.md")
    path = tmp_path / "tasks" / "my_team" / "task.py"
    path.parent.mkdir(parents=True)
    path.write_text(examples["tasks/my_team/task.py"], encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    for line in examples["function"].splitlines():
        typed(line, capsys, *(["--provider", "fake"] if line.split()[1] == "run" else []))
    run = load_run(tmp_path / "runs" / "team")
    agents = Counter(t.agent for one in run.episodes for n in one.nodes for t in n.turns)
    assert agents["writer"] == agents["editor"] == 4 * run.config["search"]["k_samples"]
    assert all(0 < one.reward <= 1 for one in run.episodes)


@pytest.mark.slow
def test_the_examples_of_runs_methods_work_from_top_to_bottom(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With other models than the page names: gold answers of a script, and a tiny base that
    learns."""
    pytest.importorskip("optuna")
    pytest.importorskip("transformers")
    from tests.tasks.local_runs import roomy_model

    monkeypatch.chdir(tmp_path)
    tldr = load_task("tldr")
    known = [(one, tldr.gold(one) or {}) for one in tldr.problems("train")]
    lines = [
        {"agent": role, "match": one.prompt.strip()[:60], "text": text}
        for one, gold in known
        for role, text in gold.items()
    ]
    (tmp_path / "script.jsonl").write_text(
        "".join(f"{json.dumps(line)}\n" for line in [*lines, {"agent": "*", "text": "nothing"}])
    )
    fake = f'"name": "fake", "fake": {{"script": {str(tmp_path / "script.jsonl")!r}}}'
    examples, base = examples_of("python.md"), repr(str(roomy_model(tmp_path)))
    assert len(examples) == (ROOT / "docs" / "python.md").read_text().count("```python")
    scope: dict[str, Any] = {}
    for code in examples.values():
        code = code.replace('"model": "embedded"', f'"model": {base}')
        exec(code.replace('"name": "embedded"', fake), scope)
    assert scope["run"].best.reward > 0.9
    assert [*scope["beside"]] == ["fixed", "best_of_n"]
    assert scope["elsewhere"].folder.name.endswith("--on-arxiv")
    assert {one["state"] for one in scope["found"].trials} == {"complete"}
    assert scope["team"].config["backend"] == "local"
    for place in ("compared", "adapters/concise", "chats/concise.jsonl", "sweeps/first/best.yaml"):
        assert (tmp_path / place).exists(), place
    assert "RESULTS.md" in capsys.readouterr().out


@pytest.mark.slow
def test_the_example_of_a_policy_plays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    text = (ROOT / "docs" / "ppo.md").read_text(encoding="utf-8")
    (example,) = re.findall(r"<!-- example: policy -->\n```python\n(.*?)```", text, re.DOTALL)
    monkeypatch.chdir(tmp_path)
    ppo = {"games": 16, "horizon": 8, "steps": 128, "minibatch": 128, "device": "cpu"}
    config = {"backend": "ppo", "task": "bucket_brigade", "ppo": ppo}
    orchestry.train(config, "runs/baseline_v1")
    found: dict[str, Any] = {}
    exec(example, found)
    assert found["actions"].shape == (100, 4, 3)
    assert found["games"].ended.any()


def _parse(args: list[str]) -> Any:
    """What the command line makes of the words; raises what it would refuse them with."""
    context: Any = group.make_context("orchestry", args, resilient_parsing=True)
    while isinstance(context.command, TyperGroup):
        name, found, args = context.command.resolve_command(context, args)
        assert found is not None
        context = found.make_context(name, list(args), parent=context)
    return context


def _is_there(args: list[str]) -> bool:
    if args[0] == "-m":
        return find_spec(args[1]) is not None
    return args[0].startswith("-") or (ROOT / args[0]).exists()


def test_the_readme_counts_the_tasks() -> None:
    numbers = ("Eight", "Nine", "Ten", "Eleven", "Twelve")
    count = len([*ROOT.glob("tasks/*/task.py")])
    assert f"{numbers[count - 8]} tasks are included." in (ROOT / "README.md").read_text()


def _anchors(page: Path) -> set[str]:
    """Of the page's headings, as mkdocs and code hosts make them; code is no heading."""
    text = re.sub(r"(?ms)^(~{3,}|`{3,}).*?^\1", "", page.read_text(encoding="utf-8"))
    words = [re.sub(r"[^\w\s-]", "", line) for line in re.findall(r"(?m)^#+ (.+)$", text)]
    return {re.sub(r"[-\s]+", "-", one.strip().lower()) for one in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_a_link_to_a_heading_leads_to_one(page: Path) -> None:
    links = re.findall(r"\]\(([^)#\s:]*)#([^)\s]+)\)", page.read_text(encoding="utf-8"))
    there = {name: _anchors(page.parent / name if name else page) for name, _ in links}
    lost = [f"{name}#{heading}" for name, heading in links if heading not in there[name]]
    assert not lost
