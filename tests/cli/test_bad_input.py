"""Hostile and clumsy input: one clear line, the right exit code, and nothing paid for is lost."""

from __future__ import annotations

import json
import resource
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from orchestry.store.journal import Answered, Opened, encode, read
from orchestry.store.run import load_run
from tests.cli.support import FAKE, CommandLine, Reply, chat, message, served, stream
from tests.engine.test_run import artefacts

TASK = """
from tests.fixtures.tasks.words.task import Words as Base

class Words(Base):
    name = "odd"
    {body}
"""


@pytest.mark.parametrize(
    ("args", "found"),
    [
        (("--task", "wrods"), "unknown task 'wrods': did you mean 'words'"),
        (("--task", "../words"), "unknown task '../words'"),
        (("--task", ""), "unknown task ''"),
        (("--task-path", "nowhere"), "is not a folder"),
        (("--set", "agents.wrter.model=x"), "did you mean 'writer'"),
        (("--set", "serch.k_samples=3"), "did you mean 'search'"),
        (("--set", "weights.quality=0"), "weights"),
        (("--set", "weights.quality=.nan"), "'weights.quality' is nan"),
        (("--set", "weights.qualty=1"), "did you mean 'quality'"),
        (("--set", "split=tst"), "'train', 'dev' or 'test'"),
        (("--set", "split=2024-13-45"), "is not a YAML value"),
        (("--set", "search.k_samples"), "key=value"),
        (("--set", "search=&a {x: *a}"), "alias"),
        (("--set", "provider.fake.script=none"), "correct provider.fake.script"),
        (("--set", "sampling.max_tokens=1e12"), "'sampling.max_tokens'"),
        (("--episodes", 0), "'episodes' is 0"),
        (("--episodes", -1), "'episodes' is -1"),
        (("--episodes", 10**12), "'episodes'"),
        (("--k-samples", 10**6), "'search.k_samples'"),
        (("--budget", "nan"), "'budget.usd' is nan"),
        (("--budget", "inf"), "'budget.usd' is inf"),
        (("--seed", -1), "'seed' is -1"),
        (("--config", "none.yaml"), "unknown config file or preset 'none.yaml'"),
        (("--config", "folder/none.yaml"), "does not exist"),
        (("--config", "quick_tset"), "did you mean 'quick_test'?"),
        (("--config", "."), "can't be read"),
        (("--provider", "recorded"), "provider.recording"),
        (("--provider", "anthropic"), "ANTHROPIC_API_KEY is not set"),
        (("--provider", "openai", "--model", "gpt-4o"), "OPENAI_API_KEY is not set"),
        (("--provider", "embedded", "--model", "x"), "unknown embedded model 'x'"),
        (("--backend", "local"), "provider.model"),
        (("--run-dir", "a_file"), "a_file is not a directory"),
        (("--run-dir", "a_file/run"), "a_file is not a directory"),
        (("--run-dir", "bad\udcff"), "not a UTF-8 name"),
    ],
)
def test_bad_usage_is_one_line_and_makes_nothing(
    cli: CommandLine, args: tuple[object, ...], found: str
) -> None:
    Path("a_file").touch()
    cli("run", *FAKE, *args).failed(2, found)
    assert [path.name for path in Path().iterdir() if path.name != "cache"] == ["a_file"]


def test_an_unknown_price_says_how_to_give_it(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k-0123456789")
    args = (*FAKE, "--provider", "anthropic", "--model", "claude-haiku-77")
    cli("run", *args).failed(2, "price", "--set prices.claude-haiku-77.input=")
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("body", "found"),
    [
        ("async def evaluate(self, s, t): raise KeyError('x')", "evaluate raised KeyError: 'x'"),
        ("async def evaluate(self, s, t): raise SystemExit(7)", "evaluate raised SystemExit: 7"),
        ("async def evaluate(self, s, t): return None", "evaluate gave a NoneType"),
        ("async def evaluate(self, s, t): return 0.5", "evaluate gave a float"),
        (
            "async def evaluate(self, s, t): return self.score(quality=float('nan'))",
            "evaluate gave a total of nan",
        ),
        (
            "async def evaluate(self, s, t): return self.score(quality=1.5)",
            "evaluate gave a total of 1.5",
        ),
        ("def observe(self, s, a): return None", "observe"),
        ("def observe(self, s, a): return '\\ud800'", "observe"),
        ("def step(self, s, a): return [1]", "to_act raised AttributeError"),
        ("def to_act(self, s): return () if s.said else ('nobody',)", "to_act 'nobody'"),
        ("def to_act(self, s): return ('writer',)", "does not end"),
        ("def problems(self, split): raise OSError('gone')", "gone"),
        ("def problems(self, split): return []", "no problems"),
        (
            "def problems(self, split): return super().problems(split) * 2",
            "0 and 5 of split 'train' have the same id 'train-0'",
        ),
    ],
)
def test_a_broken_task_is_one_line(cli: CommandLine, body: str, found: str) -> None:
    odd_task(body)
    result = cli("run", *FAKE, "--task", "odd", "--task-path", "mine", "--json")
    result.failed(2 if "problems" in found else 1, found)


def odd_task(body: str) -> None:
    Path("mine/odd").mkdir(parents=True, exist_ok=True)
    Path("mine/odd/task.py").write_text(TASK.replace("{body}", body))
    for name in [name for name in sys.modules if name.startswith("orchestry_tasks.odd")]:
        del sys.modules[name]  # each call of the command line is a process of its own


def test_a_task_that_breaks_late_costs_the_trajectories_that_it_breaks_on(cli: CommandLine) -> None:
    odd_task(
        "def evaluate(self, s, t):\n"
        "        if s.problem.id == 'train-3': raise ValueError('late')\n"
        "        return self.score(quality=1)"
    )
    args = ("--task", "odd", "--task-path", "mine", "--episodes", 5, "--run-dir", "run")
    result = cli("run", *FAKE, *args)
    assert result.code == 0
    assert "task_error 4/36" in result.out
    assert result.err.count("ValueError: late on problem train-3 (task.py:7)") == 1
    assert "the traceback is in run/task_error.txt" in result.err
    assert "4 of 84 states could not be scored" in result.err
    assert "raise ValueError('late')" in Path("run/task_error.txt").read_text()


@contextmanager
def file_limit(size: int) -> Iterator[None]:
    """A full disk, as far as a process without rights can have one: no file grows past `size`."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


@pytest.mark.parametrize("size", [10, 300, 2_000, 9_000, 20_000, 30_000, 45_000, 60_000])
@pytest.mark.slow
def test_a_full_disk_is_named_and_resume_completes(cli: CommandLine, size: int) -> None:
    sets = ("--set", "search.episodes_in_flight=1")
    assert cli("run", *FAKE, *sets, "--run-dir", "whole").code == 0
    with file_limit(size):
        result = cli("run", *FAKE, *sets, "--run-dir", "run")
    result.failed(1, "can't be written", "free space")
    begun = Path("run/journal.jsonl").stat().st_size > 0
    resumed = cli(*(("resume", "run") if begun else ("run", *FAKE, *sets, "--run-dir", "run")))
    assert resumed.code == 0, resumed
    assert artefacts(Path("run")) == artefacts(Path("whole"))
    assert not list(Path("run").glob("*.new"))


@pytest.mark.slow
def test_a_cache_without_a_disk_is_left_out(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k-0123456789")
    with served(lambda _, body: (200, message("fine"))) as url:
        monkeypatch.setenv("ANTHROPIC_BASE_URL", url)
        args = (*FAKE, "--provider", "anthropic", "--set", "cache.dir=/dev/null/x", "--json")
        result = cli("run", *args)
    assert result.code == 0, result
    assert "answer cache /dev/null/x can't be used" in result.err


def test_a_run_that_cannot_be_made_spends_nothing(cli: CommandLine) -> None:
    cli("run", *FAKE, "--run-dir", "/proc/orchestry").failed(1, "can't be made", "--run-dir")


@pytest.fixture
def run(cli: CommandLine) -> Path:
    """A finished run."""
    assert cli("run", *FAKE, "--run-dir", "run").code == 0
    return Path("run")


def test_a_run_is_not_written_over(cli: CommandLine, run: Path) -> None:
    before = (run / "journal.jsonl").read_bytes()
    cli("run", *FAKE, "--run-dir", run).failed(2, "holds a run", "orchestry resume run")
    assert (run / "journal.jsonl").read_bytes() == before


def test_a_journal_of_another_version_is_named(cli: CommandLine, run: Path) -> None:
    path = run / "journal.jsonl"
    path.write_bytes(encode(Opened(version=9, at=0.0, provider="fake", model="m")))
    for command in ("resume", "evaluate"):
        cli(command, run).failed(1, "version 9", "reads version 2")


def test_a_damaged_journal_line_is_named_and_a_torn_one_dropped(
    cli: CommandLine, run: Path
) -> None:
    path = run / "journal.jsonl"
    whole = path.read_bytes()
    lines = whole.split(b"\n")
    path.write_bytes(b"\n".join([*lines[:4], lines[4][:-9] + b"X" + lines[4][-8:], *lines[5:]]))
    cli("resume", run).failed(1, "journal.jsonl, line 5 is damaged", "restore the file")
    path.write_bytes(whole + b'{"kind":"answered","ca')
    assert cli("resume", run).code == 0


def test_damaged_episodes_come_back_from_the_journal(cli: CommandLine, run: Path) -> None:
    expected, path = artefacts(run), run / "episodes.jsonl"
    lines = path.read_bytes().splitlines(keepends=True)
    path.write_bytes(lines[0] + b"{\xff\n" + lines[2])
    cli("resume", run).failed(1, "episodes.jsonl, line 2 is damaged", "delete the line")
    path.write_bytes(lines[0] + lines[2])
    result = cli("resume", run)
    assert result.code == 0
    assert "episodes.jsonl lacks 1 finished episodes" in result.err
    assert artefacts(run) == expected
    path.unlink()
    assert cli("resume", run).code == 0
    assert artefacts(run) == expected


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("episodes: [", "config.yaml can't be read"),
        ("- 1\n", "config.yaml can't be read (it holds no keys and values)"),
        ("episods: 3\n", "did you mean 'episodes'"),
        ("\udcff", "config.yaml can't be read"),
    ],
)
def test_a_badly_edited_config_is_named(cli: CommandLine, run: Path, text: str, found: str) -> None:
    (run / "config.yaml").write_bytes(text.encode("utf-8", "surrogateescape"))
    for command in ("resume", "evaluate"):
        cli(command, run).failed(2, found)


def test_a_folder_without_a_run_is_named(cli: CommandLine, run: Path) -> None:
    (run / "config.yaml").unlink()
    cli("resume", run).failed(2, "run has no config.yaml", "restore it from a copy")
    cli("run", *FAKE, "--run-dir", run).failed(2, "holds a run")
    Path("empty").mkdir()
    cli("resume", "empty").failed(2, "holds no run")
    cli("resume", "none").failed(2, "does not exist")
    cli("evaluate", "none").failed(2, "does not exist")


ODD_ANSWERS: dict[str, str] = {
    "empty": "",
    "lone surrogate": "a\ud800b",
    "long": "x" * 1_000_000,
    "NUL": "a\x00b\u2028c\r\n",
    "markup": "[bold]x[/nope] \x1b[2J",
}


@pytest.mark.parametrize("text", ODD_ANSWERS.values(), ids=ODD_ANSWERS.keys())
@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
@pytest.mark.slow
def test_an_odd_answer_is_an_answer(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, vendor: str, text: str
) -> None:
    form = {"anthropic": message, "openai": chat}[vendor]
    with served(lambda _, body: (200, stream(text) if "stream" in body else form(text))) as url:
        paid(monkeypatch, vendor, url)
        args = (*paid_args(vendor), "--episodes", 1, "--run-dir", "run")
        result = cli("run", *args, "--json", "--show-best", "--verbose")
    assert result.code == 0, result
    assert json.loads(result.out)["stopped"] == "done"
    (episode,) = load_run("run").episodes
    assert len(episode.best_node.turns[0].completion.text) <= 200_000
    assert cli("resume", "run").code == 0


def paid(monkeypatch: pytest.MonkeyPatch, vendor: str, url: str) -> None:
    monkeypatch.setenv(f"{vendor.upper()}_API_KEY", "k-0123456789")
    monkeypatch.setenv(f"{vendor.upper()}_BASE_URL", url)


def paid_args(vendor: str) -> tuple[object, ...]:
    model = {"anthropic": "claude-haiku-4-5", "openai": "gpt-4o-mini"}[vendor]
    return (*FAKE, "--provider", vendor, "--model", model, "--set", "retry.base_s=0")


REPLIES: dict[str, tuple[int, Reply, str]] = {
    "not UTF-8": (4, (200, b'{"content": "\xff"}'), "not UTF-8"),
    "no JSON": (4, (200, b"<html><title>Login</title>"), "no JSON: 'Login'"),
    "empty body": (4, (200, b""), "an empty body"),
    "a list": (4, (200, b"[]"), "not an object"),
    "deep": (4, (200, b"[" * 100_000), "no JSON"),
    "bad request": (1, (400, b'{"error": {"message": "max_tokens"}}'), "answered 400: max_tokens"),
    "bad key": (1, (401, b'{"error": {"message": "invalid x-api-key"}}'), "check the key in"),
    "no model": (1, (404, b"{}"), "check the model's name"),
}


@pytest.mark.parametrize(("code", "reply", "found"), REPLIES.values(), ids=REPLIES.keys())
@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
@pytest.mark.slow
def test_a_server_that_answers_badly_from_some_call_on_stops_a_run_that_goes_on_later(
    cli: CommandLine,
    monkeypatch: pytest.MonkeyPatch,
    vendor: str,
    code: int,
    reply: Reply,
    found: str,
) -> None:
    form, good = {"anthropic": message, "openai": chat}[vendor], 2
    asked = list[int]()

    def answer(number: int, body: object) -> Reply:
        asked.append(number)
        return (200, form("fine words")) if number < good else reply

    sets = ("--set", "search.concurrency=1", "--run-dir", "run", "--patience", 0)
    with served(answer) as url:
        paid(monkeypatch, vendor, url)
        result = cli("run", *paid_args(vendor), *sets)
        assert (result.code, found in result.err) == (code, True), result
        if reply[0] in (400, 404):  # of a server that answered others, it is a prompt's own fault
            return
        if reply[0] == 401:
            assert len(asked) == good + 1  # no retry, and no call after the failure
        failed, good = len(asked) - good, 10**6
        assert cli("resume", "run").code == 0
    answers = [e for e in read(Path("run/journal.jsonl")) if isinstance(e, Answered)]
    assert len([e for e in answers if e.source == "provider"]) == len(asked) - failed


TOO_LONG = {"error": {"message": "prompt is too long: 9000 tokens > 8000 maximum"}}


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
def test_a_run_without_an_answer_has_failed_and_says_the_cause_once(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    with served(lambda *_: (400, json.dumps(TOO_LONG).encode())) as url:
        paid(monkeypatch, vendor, url)
        result = cli("run", *paid_args(vendor), "--run-dir", "run", "--json")
    result.failed(1, "not one call was answered")
    assert load_run("run").summary.stopped == "failed"
    said = [line for line in result.err.splitlines() if "writer's answer counts as empty" in line]
    assert len(said) == 1


def test_a_run_of_which_every_episode_failed_has_failed(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    def answer(_: int, body: dict[str, Any]) -> Reply:
        writer = "write words" in json.dumps(body["system"])
        return (200, message("fine words")) if writer else (400, b'{"error": {"message": "no"}}')

    with served(answer) as url:
        paid(monkeypatch, "anthropic", url)
        one = ("--k-samples", 1, "--set", "search.concurrency=1")
        result = cli("run", *paid_args("anthropic"), *one, "--run-dir", "run")
    assert result.code == 1
    assert "every episode failed (3 of 3), so nothing was measured" in result.last


def test_answers_from_the_cache_alone_are_answers(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    with served(lambda *_: (200, message("fine words"))) as url:
        paid(monkeypatch, "anthropic", url)
        assert cli("run", *paid_args("anthropic"), "--run-dir", "run").code == 0
        again = json.loads(cli("run", *paid_args("anthropic"), "--json").out)
    assert (again["stopped"], again["calls"]) == ("done", 0)
    assert again["cache_hits"] > 0


@pytest.mark.parametrize("vendor", ["anthropic", "openai"])
def test_a_port_that_refuses_is_named(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    paid(monkeypatch, vendor, "http://127.0.0.1:9")
    result = cli("run", *paid_args(vendor), "--run-dir", "run", "--patience", 0)
    assert result.code == 4
    for told in ("http://127.0.0.1:9", f"{vendor.upper()}_BASE_URL", "orchestry resume run"):
        assert told in result.err + result.out


@pytest.mark.parametrize("command", ["sweep", "tournament"])
def test_a_launcher_for_one_process(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    """Else its other processes would end at once, and the first would wait for them."""
    monkeypatch.setenv("WORLD_SIZE", "2")
    cli(command).failed(2, f"{command} takes one process: start it without a launcher")
