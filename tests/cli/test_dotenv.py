"""The file .env: what is taken from it, what wins over it, and what it can't redirect."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from orchestry.cli.dotenv import take
from orchestry.core.config import ProviderConfig
from orchestry.core.errors import ConfigError
from orchestry.core.secrets import REFUSED
from orchestry.models.providers import open_provider
from tests.cli.support import FAKE, CommandLine

KEY = "sk-of-this-user-0123456789"
NAMES = ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL", "OPENAI_MODEL")


@pytest.fixture
def place(cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> CommandLine:
    """The command line with nothing confirmed; what it takes is gone after the test."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    for name in (*NAMES, f"{REFUSED}OPENAI_BASE_URL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    return cli


def env(*lines: str) -> Path:
    path = Path(".env")
    path.write_text("\n".join([*lines, ""]), encoding="utf-8")
    return path


def test_known_names_are_taken_as_they_stand_and_the_environment_wins(place: CommandLine) -> None:
    path = env(
        "# mine",
        f"export ANTHROPIC_API_KEY='{KEY}'",
        'OPENAI_API_KEY="a$HOME-b"  # a comment',
        "OPENAI_MODEL=from-the-file",
        "ORCHESTRY_PARENT=1",
        "ORCHESTRY_STORAGE=postgresql://stranger.example/db",
        "PATH=/tmp",
        "EMPTY=",
    )
    environ = {"OPENAI_MODEL": "mine"}
    assert take(environ, path=path) == ["ANTHROPIC_API_KEY", "OPENAI_API_KEY"]
    assert environ == {
        "ANTHROPIC_API_KEY": KEY,
        "OPENAI_API_KEY": "a$HOME-b",
        "OPENAI_MODEL": "mine",
    }


def test_a_strangers_address_gets_no_key_until_it_is_confirmed(place: CommandLine) -> None:
    path, url = env("OPENAI_BASE_URL=https://me:pw@stranger.example/v1"), "https://stranger.example"
    environ, config = {"OPENAI_API_KEY": KEY}, ProviderConfig(name="openai", model="m")
    assert take(environ, path=path) == []
    with pytest.raises(ConfigError, match=f"OPENAI_BASE_URL {url}/v1 .*--trust.*or export"):
        open_provider(config, 0, environ)
    own = config.model_copy(update={"base_url": "http://127.0.0.1:9"})
    assert open_provider(own, 0, environ).base_url == "http://127.0.0.1:9"
    assert take(environ, trust=True, path=path) == ["OPENAI_BASE_URL"]
    assert open_provider(config, 0, environ).base_url == "https://me:pw@stranger.example/v1"
    assert take({}, path=path) == ["OPENAI_BASE_URL"], "a confirmed address is remembered"
    kept = Path("state/orchestry/places").read_text()
    assert url in kept
    assert "pw" not in kept


@pytest.mark.parametrize("url", ["http://127.0.0.1:8000/v1", "https://api.openai.com/v1"])
def test_this_machine_and_a_vendor_need_no_word(place: CommandLine, url: str) -> None:
    assert take({}, path=env(f"OPENAI_BASE_URL={url}")) == ["OPENAI_BASE_URL"]


def test_a_file_that_is_no_text_is_said(place: CommandLine) -> None:
    Path(".env").write_bytes(b"OPENAI_API_KEY=\xff\xfe")
    place("run", *FAKE).failed(2, ".env can't be read")


def test_a_line_that_cannot_be_read_is_named_and_the_others_are_taken(
    place: CommandLine, capsys: pytest.CaptureFixture[str]
) -> None:
    path = env("OPENAI_MODEL=m", "", "OPENAI_API_KEY='open", "ANTHROPIC_MODEL=n")
    assert take({}, path=path) == ["ANTHROPIC_MODEL", "OPENAI_MODEL"]
    assert (
        capsys.readouterr().err == "· .env, line 3 is left out: write NAME=VALUE, quotes closed\n"
    )


def test_a_run_names_what_it_takes_and_writes_no_value(place: CommandLine) -> None:
    env(f"ANTHROPIC_API_KEY={KEY}", "OPENAI_BASE_URL=https://stranger.example/v1")
    done = place("run", *FAKE, "--run-dir", "made")
    assert done.code == 0
    assert "· from .env: ANTHROPIC_API_KEY\n" in done.err
    assert os.environ["ANTHROPIC_API_KEY"] == KEY
    written = [path.read_bytes() for path in Path().rglob("*") if path.is_file()]
    assert sum(KEY.encode() in data for data in written) == 1, "the file itself"
    asked = ("run", *FAKE[2:], "--provider", "openai", "--model", "m", "--dry-run")
    place(*asked).failed(2, "OPENAI_BASE_URL https://stranger.example/v1", "--trust")


@pytest.mark.slow
def test_doctor_says_what_is_from_the_file_and_what_is_not_taken(place: CommandLine) -> None:
    env(f"ANTHROPIC_API_KEY={KEY}", "OPENAI_BASE_URL=https://stranger.example/v1")
    said = " ".join(place("doctor").out.split())
    assert "ANTHROPIC_API_KEY set, from .env" in said
    assert "OPENAI_BASE_URL" in said
    assert "you never used that on this machine" in said
    assert KEY not in said
