"""Other weights for the embedded provider: a file of one's own, and a hub's, from a real server."""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path

import pytest

from orchestry.core.config import ProviderConfig
from orchestry.core.errors import ConfigError, Interrupted, OrchestryError
from orchestry.core.machine import memory_gb
from orchestry.models.embedded import EmbeddedProvider, fetched
from orchestry.models.gguf import KNOWN, MODEL, SHA256, gguf, gguf_named
from orchestry.models.providers import open_provider
from tests.cli.conftest import cli as cli
from tests.cli.support import FAKE, CommandLine
from tests.core.test_fetch import hub

NAME = "someone/Small-GGUF:small-q4.gguf"


@pytest.fixture
def mine(tmp_path: Path) -> Path:
    """The embedded weights under another name."""
    path = tmp_path / "mine.gguf"
    path.symlink_to(gguf(MODEL).fetch())
    return path


def stock(folder: Path, content: bytes) -> Path:
    """A hub's folder with that one file."""
    file = folder / "someone" / "Small-GGUF" / "resolve" / "main" / "small-q4.gguf"
    file.parent.mkdir(parents=True)
    file.write_bytes(content)
    return folder


@pytest.mark.slow
def test_a_file_of_ones_own_plays_a_run(cli: CommandLine, mine: Path) -> None:
    few = ("--episodes", "1", "--k-samples", "1", "--beam-width", "1")
    command = ("run", *FAKE[2:6], *few, "--provider", "embedded", "--model", mine, "--json")
    found = cli(*command, "--set", "sampling.max_tokens=8", "--run-dir", "r")
    assert found.code == 0, found.err
    told = json.loads(found.out)
    assert (told["model"], told["model_sha256"]) == (str(mine), SHA256)
    assert (told["calls"], told["cost_usd"]) == (3, 0.0)
    assert cli("resume", "r", "--set", "episodes=2").code == 0
    content = mine.read_bytes()
    mine.unlink()  # a link to the weights that all tests use
    mine.write_bytes(content + b"1")
    changed = cli("resume", "r", "--set", "episodes=3")
    changed.failed(2, "was played with other contents of weights", "--accept-changes")


def test_a_file_that_breaks_off_is_named(cli: CommandLine, tmp_path: Path) -> None:
    part = tmp_path / "part.gguf"
    part.write_bytes(b"GGUF")
    found = cli("run", "--provider", "embedded", "--model", part, "--run-dir", "r")
    found.failed(1, f"the embedded model {part} did not start", "a whole file (this one has 4 by")


def test_without_a_name_all_is_as_before() -> None:
    for model in (None, MODEL, "smollm2-135m", KNOWN[0].place):
        found = open_provider(ProviderConfig(name="embedded", model=model), 0, {})
        assert isinstance(found, EmbeddedProvider)
        assert (found.model, found.sha256) == (MODEL, SHA256)
        assert found.base_url == f"embedded:{SHA256[:12]}"


def test_a_hubs_file_is_fetched_once_and_kept(tmp_path: Path) -> None:
    content = b"GGUF" + os.urandom(3_000_000)
    with hub(stock(tmp_path / "hub", content)) as (url, _):
        environ = {"HF_ENDPOINT": url, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        own = gguf(NAME, environ)
        assert own.sha256 is None
        seen: list[tuple[int, int]] = []
        path = own.fetch(lambda done, total: seen.append((done, total)))
    assert path.read_bytes() == content
    assert seen[-1] == (len(content), len(content))
    again = gguf(NAME, environ)  # the hub is gone
    assert again.fetch(lambda done, total: None) == path
    assert again.address == own.address == f"embedded:{NAME}"
    path.write_bytes(b"GGUF of another kind")
    with pytest.raises(OrchestryError, match=r"is not small-q4\.gguf as .* published.*delete it"):
        gguf(NAME, environ).fetch(lambda done, total: None)


def test_what_a_hub_does_wrong_leaves_nothing_behind(tmp_path: Path) -> None:
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}

    def fails(url: str, *said: str) -> None:
        own = gguf(NAME, {**environ, "HF_ENDPOINT": url})
        with pytest.raises(OrchestryError) as caught:
            own.fetch(lambda done, total: None)
        assert all(text in str(caught.value) for text in (*said, "or give --model a copy of small"))
        files = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
        assert files == ["small-q4.gguf.lock"]

    fails("http://127.0.0.1:9", "refused")
    with hub(tmp_path) as (url, _):
        fails(url, "404")
    with hub(stock(tmp_path / "page", b"<html>log in</html>")) as (url, _):
        fails(url, "it sent another file (19 bytes): it begins with b'<htm'")
    with hub(stock(tmp_path / "cut", b"GGUF" + b"\0" * 100_000), cut=1000) as (url, _):
        fails(url, "broke off after 1,000 of 100,004 bytes")


def test_a_download_can_be_stopped(tmp_path: Path) -> None:
    cancelled = threading.Event()
    cancelled.set()
    with hub(stock(tmp_path / "hub", b"GGUF" + b"\0" * 100)) as (url, _):
        environ = {"HF_ENDPOINT": url, "XDG_CACHE_HOME": str(tmp_path / "cache")}
        with pytest.raises(Interrupted):
            fetched(gguf(NAME, environ), cancelled)


def test_what_is_no_model_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"did you mean 'qwen2.5-0.5b'.*owner/name:file.gguf"):
        gguf("qwen2.5-0.5")
    with pytest.raises(ConfigError, match=r"none.gguf can't be read \(No such file"):
        gguf(str(tmp_path / "none.gguf"))
    (tmp_path / "text.gguf").write_text("hello")
    with pytest.raises(ConfigError, match="is not a GGUF file: it begins with b'hell'"):
        gguf(str(tmp_path / "text.gguf"))


def test_models_are_listed_and_fetched(
    cli: CommandLine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = json.loads(cli("models", "list", "--json").out)["models"]
    assert [row["name"] for row in rows] == [one.name for one in KNOWN]
    assert not any(row["fetched"] for row in rows[1:])
    shown = cli("models", "list").out.splitlines()
    assert len(shown) == len(KNOWN)
    assert all("Apache-2.0" in line for line in shown)
    with hub(stock(tmp_path / "hub", b"GGUF" + b"\0" * 100)) as (url, _):
        monkeypatch.setenv("HF_ENDPOINT", url)
        found = cli("models", "get", NAME)
    assert found.code == 0
    assert Path(found.out.strip()).read_bytes().startswith(b"GGUF")
    assert f"orchestry run --model {NAME}" in found.err
    cli("models", "get", "qwen").failed(2, "unknown embedded model 'qwen'")


def test_doctor_says_what_fits(cli: CommandLine) -> None:
    checks = {check["name"]: check for check in json.loads(cli("doctor", "--json").out)["checks"]}
    free = memory_gb()
    assert free is None or "smollm2-135m" in checks["models"]["found"]


def test_free_memory_is_read_from_the_table(tmp_path: Path) -> None:
    table = tmp_path / "meminfo"
    table.write_text("MemTotal: 9 kB\nMemAvailable:    2000000 kB\n")
    assert memory_gb(table) == pytest.approx(2.048)
    assert memory_gb(tmp_path / "none") is None


def test_a_folder_of_a_listed_name_is_never_taken_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen2.5-coder-0.5b").mkdir()
    with pytest.raises(ConfigError, match=r"name the folder as \./qwen2\.5-coder-0\.5b"):
        gguf_named("qwen2.5-coder-0.5b")
    assert gguf_named("./qwen2.5-coder-0.5b") is None
