"""No API key in any file, log or traceback, whatever a run comes to."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

import pytest

from orchestry.task.registry import load_task
from tests.cli.conftest import cli
from tests.cli.support import FAKE, CommandLine, Reply, Result, chat, message, served

__all__ = ["cli"]
SECRET = "sk-ant-SENTINEL-0123456789abcdef"
MARK = "SENTINEL"
VENDORS = ("anthropic", "openai")
ENDINGS = {
    "done": 0,
    "bad key": 1,
    "bad request": 1,
    "server error": 4,
    "login page": 4,
    "no JSON": 4,
    "long echo": 4,
    "timeout": 4,
}


def reply(ending: str, vendor: str) -> Reply:
    """A server that tells all it was told."""
    said = f"Incorrect API key provided: {SECRET}. Authorization: Bearer {SECRET}".encode()
    if ending == "timeout":
        time.sleep(0.6)
    return {
        "done": (200, {"anthropic": message, "openai": chat}[vendor]("fine words")),
        "bad key": (401, b'{"error": {"message": "%b"}}' % said),
        "bad request": (400, b'{"error": {"message": {"headers": ["%b"]}}}' % said),
        "server error": (500, said),
        "login page": (200, b"<title>%b</title>" % said),
        "no JSON": (200, said),
        "long echo": (200, b"x" * 270 + b" " + said),
        "timeout": (200, b"{}"),
    }[ending]


@pytest.mark.parametrize("ending", ENDINGS)
@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.slow
def test_no_key_in_any_file_or_line(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, vendor: str, ending: str
) -> None:
    with served(lambda number, body: reply(ending, vendor)) as url:
        wait_s = 0.3 if ending == "timeout" else 20  # on a busy machine an answer may take a second
        result = run(cli, monkeypatch, vendor, url, wait_s)
        assert result.code == ENDINGS[ending], result
        assert_no_secret(result)
        assert_no_secret(cli("resume", "run", "--verbose", "--json"))
    if result.code == 1:
        assert "Traceback" in result.err  # --verbose shows one, and it is clean


@pytest.mark.parametrize("vendor", VENDORS)
def test_no_key_where_nobody_listens(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, vendor: str
) -> None:
    result = run(cli, monkeypatch, vendor, "http://127.0.0.1:9")
    assert result.code == 4
    assert_no_secret(result)


@pytest.mark.parametrize(
    "url", [f"http://user:{SECRET}@127.0.0.1:9", f"http://127.0.0.1:9?key={SECRET}", SECRET]
)
@pytest.mark.parametrize("vendor", VENDORS)
@pytest.mark.slow
def test_no_password_of_an_address(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, vendor: str, url: str
) -> None:
    result = run(cli, monkeypatch, vendor, url)
    assert result.code in (1, 2, 4)
    assert_no_secret(result)
    assert_no_secret(cli("doctor"))


@pytest.mark.parametrize(
    "item",
    [
        f"provider.api_key={SECRET}",
        f"provider={SECRET}",
        f"provider.model={SECRET}",
        f"provider.base_url={SECRET}",
        f"provider.base_url=http://user:{MARK}@127.0.0.1:9",
        f"provider.base_url=http://127.0.0.1:9/?key={MARK}",
        f"judge.provider.base_url=http://user:{MARK}@127.0.0.1:9",
        f"judge.provider={{name: fake, base_url: 'http://127.0.0.1:9/?key={MARK}'}}",
        f"agents.writer.system_prompt=the key is {SECRET}",
        f"task={SECRET}",
        f"{SECRET}=1",
        f"sampling.stop=[{SECRET}]",
    ],
)
def test_a_key_in_the_config_is_refused_and_not_repeated(cli: CommandLine, item: str) -> None:
    file = Path("config.yaml")
    for args in (("--set", item), ("--verbose", "--set", item)):
        result = cli("run", "--provider", "fake", "--episodes", 1, *args)
        assert result.code == 2, result
        assert_no_secret(result)
    assert not file.exists()
    assert not Path("runs").exists()


def test_a_key_given_as_another_flag_is_refused(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A key of no known form is known by the environment that holds it."""
    monkeypatch.setenv("OPENAI_API_KEY", f"gw_{MARK}_77")
    result = cli("run", *FAKE, "--model", f"gw_{MARK}_77", "--verbose")
    assert result.code == 2
    assert "OPENAI_API_KEY" in result.last
    assert_no_secret(result)


@pytest.mark.skipif(not Path("/proc/self/environ").exists(), reason="no /proc")
@pytest.mark.parametrize("end", ["return text", "return [(text,)]", "raise ValueError(text)"])
@pytest.mark.slow
def test_no_key_that_a_candidate_reads_from_its_parent(
    cli: CommandLine, tmp_path: Path, end: str
) -> None:
    """A process of its own: /proc shows the environment that a process was started with."""
    lines = [
        {"agent": "*", "match": f"def {name}(", "text": theft(name, end)}
        for name in (p.data["entry_point"] for p in load_task("code_review").problems("train"))
    ]
    script = tmp_path / "script.jsonl"
    script.write_text("\n".join(map(json.dumps, [*lines, {"agent": "*", "text": "LGTM"}])))
    flags = ("--provider", "fake", "--set", "provider.fake.script=script.jsonl", "--show-best")
    done = subprocess.run(
        [sys.executable, "-m", "orchestry", "run", "--episodes", "1", *flags, "--run-dir", "run"],
        env={"ANTHROPIC_API_KEY": SECRET, "XDG_CACHE_HOME": str(tmp_path / "cache")},
        capture_output=True,
        text=True,
        timeout=60,
    )
    result = Result(done.returncode, done.stdout, done.stderr)
    assert result.code == 0, result
    assert_no_secret(result)
    said = (tmp_path / "run" / "episodes.jsonl").read_text()
    assert "ANTHROPIC_API_KEY=[secret]" in said or "PermissionError" in said


def theft(name: str, end: str) -> str:
    """A candidate that answers with the environment of the process that started it."""
    body = f"import os\n    text = open(f'/proc/{{os.getppid()}}/environ').read()\n    {end}"
    return f"```python\ndef {name}(*args):\n    {body}\n```"


def run(
    cli: CommandLine, monkeypatch: pytest.MonkeyPatch, vendor: str, url: str, wait_s: float = 0.3
) -> Result:
    monkeypatch.setenv(f"{vendor.upper()}_API_KEY", SECRET)
    monkeypatch.setenv(f"{vendor.upper()}_BASE_URL", url)
    model = {"anthropic": "claude-haiku-4-5", "openai": "gpt-4o-mini"}[vendor]
    sets = ("retry.patience_s=0", "retry.base_s=0", f"provider.timeout_s={wait_s}")
    return cli(
        *("run", *FAKE, "--provider", vendor, "--model", model, "--run-dir", "run"),
        *("--verbose", "--json", "--show-best", *(arg for s in sets for arg in ("--set", s))),
    )


def assert_no_secret(result: Result) -> None:
    """Looks at both streams, and at every file below the working folder (run and cache)."""
    assert MARK not in result.out
    assert MARK not in result.err
    files = [path for path in Path().rglob("*") if path.is_file()]
    assert [path for path in files if MARK.encode() in path.read_bytes()] == []
