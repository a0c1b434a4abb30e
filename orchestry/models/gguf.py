"""Other weights for the embedded provider: a GGUF file on this machine, or one of a model hub.

A hub's file is downloaded once into the user cache. Its sha256 is written beside it and compared at
every later load.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import tempfile
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from urllib.error import HTTPError

from filelock import FileLock

from orchestry.core.errors import ConfigError, OrchestryError, reason, unknown
from orchestry.core.files import Progress, cache, write_atomic
from orchestry.models.weights import MODEL

HUB = "https://huggingface.co"
VARIABLE = "HF_ENDPOINT"
"""Environment variable that names another hub."""
_FORM = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[\w.-]+\.gguf)", re.IGNORECASE)
_MAGIC = b"GGUF"
_CHUNK = 1 << 20
_CONNECT_S = 20.0


@dataclass(frozen=True, slots=True)
class Known:
    """A small instruct model that is worth a try. Sizes are those that its hub states."""

    name: str
    place: str
    """As `--model` takes it."""
    size_gb: float
    memory_gb: float
    """Weights and the context of eight requests at once."""
    licence: str
    use: str


KNOWN = (
    Known("smollm2-135m", MODEL, 0.1, 1.0, "Apache-2.0", "the default; fetched without a hub"),
    Known(
        "smollm2-360m",
        "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:smollm2-360m-instruct-q8_0.gguf",
        *(0.39, 2.0, "Apache-2.0", "short English texts"),
    ),
    Known(
        "qwen2.5-0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf",
        *(0.49, 1.2, "Apache-2.0", "texts in many languages"),
    ),
    Known(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF:qwen2.5-1.5b-instruct-q4_k_m.gguf",
        *(1.12, 2.5, "Apache-2.0", "texts; the strongest here for prose"),
    ),
    Known(
        "qwen2.5-coder-1.5b",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        *(1.12, 2.5, "Apache-2.0", "code"),
    ),
)


@dataclass(frozen=True, slots=True)
class Gguf:
    """One file of weights."""

    name: str
    """The model's name: an absolute path, or `owner/name:file`."""
    path: Path
    url: str = ""
    """Where it is downloaded; '' for a file of this machine."""

    @property
    def address(self) -> str:
        """What its answers are kept under: the content of a local file, the name of a hub's."""
        return f"embedded:{self.name if self.url else digest(self.path)[:12]}"

    @property
    def sha256(self) -> str | None:
        """Of the file; None before it was downloaded."""
        return digest(self.path) if self.path.is_file() else None

    def fetch(self, progress: Progress) -> Path:
        """The file on disk, downloaded first if it is missing. Other processes wait meanwhile.

        Raises OrchestryError if it can't be downloaded, or is not the file that was downloaded.
        """
        if self.url and not self.path.exists():
            self.path.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{self.path}.lock"):
                if not self.path.exists():  # another process may have been first
                    self._download(progress)
        _check_magic(self.path)
        known = Path(f"{self.path}.sha256")
        if self.url and known.exists() and known.read_text() != digest(self.path):
            raise OrchestryError(
                f"{self.path} is not the file that was downloaded: delete it, so that it is "
                "fetched again"
            )
        return self.path

    def _download(self, progress: Progress) -> None:
        """Puts the file at its path whole or not at all."""
        try:
            with tempfile.TemporaryDirectory(dir=self.path.parent, prefix="fetch-") as folder:
                part = Path(folder) / self.path.name
                with urllib.request.urlopen(self.url, timeout=_CONNECT_S) as source:
                    size = int(source.headers.get("content-length") or 0)
                    _need_room(self.path.parent, size)
                    with part.open("wb") as target:
                        while chunk := source.read(_CHUNK):
                            target.write(chunk)
                            progress(target.tell(), max(size, target.tell()))
                if part.stat().st_size < size:
                    raise OSError(f"it broke off after {part.stat().st_size:,} of {size:,} bytes")
                _check_magic(part)
                write_atomic(Path(f"{self.path}.sha256"), digest(part).encode())
                part.replace(self.path)
        except (OSError, ConfigError) as error:
            if isinstance(error, HTTPError):
                error.close()  # it holds the connection
            raise OrchestryError(
                f"{self.name} can't be fetched from {self.url} ({reason(error)}): check the name "
                "and the network, or download the file yourself and give its path to --model"
            ) from None


def gguf(model: str, environ: Mapping[str, str] = os.environ) -> Gguf:
    """The weights that a name means: of `models list`, `owner/name:file.gguf`, or a path.

    Raises ConfigError for any other name, and for a path without a GGUF file.
    """
    model = next((one.place for one in KNOWN if one.name == model), model)
    path = Path(model).expanduser()
    if found := None if path.exists() else _FORM.fullmatch(model):
        folder = cache(environ) / "weights" / found["repo"].replace("/", "--")
        hub = (environ.get(VARIABLE, "").strip() or HUB).rstrip("/")
        url = f"{hub}/{found['repo']}/resolve/main/{found['file']}"
        return Gguf(model, folder / found["file"], url)
    if path.suffix.lower() != ".gguf":
        names = [MODEL, *(one.name for one in KNOWN)]
        raise ConfigError(
            f"{unknown('embedded model', model, names)}; a GGUF file's path and a hub's "
            "owner/name:file.gguf are taken too"
        )
    _check_magic(path)
    return Gguf(str(path.absolute()), path.absolute())


def digest(path: Path) -> str:
    """The sha256 of a file; computed once per process as long as it does not change."""
    found = path.stat()
    return _digest(path, found.st_mtime_ns, found.st_size)


@lru_cache(maxsize=16)
def _digest(path: Path, changed_ns: int, size: int) -> str:
    with path.open("rb") as source:
        return hashlib.file_digest(source, "sha256").hexdigest()


def _check_magic(path: Path) -> None:
    try:
        with path.open("rb") as source:
            begin = source.read(len(_MAGIC))
    except OSError as error:
        raise ConfigError(
            f"the model {path} can't be read ({error.strerror}): give the path of a GGUF file"
        ) from None
    if begin != _MAGIC:
        raise ConfigError(f"{path} is not a GGUF file: it begins with {begin!r}, give another one")


def _need_room(folder: Path, size: int) -> None:
    if (free := shutil.disk_usage(folder).free) < size:
        raise OSError(f"it takes {size / 1e6:,.0f} MB, and {folder} has {free / 1e6:,.0f} MB free")
