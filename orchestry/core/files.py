"""Files: one reader per format, and atomic writes."""

from __future__ import annotations

import codecs
import io
import json
import os
import stat
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, TypeVar

import yaml

from orchestry.core.errors import StoreError

T = TypeVar("T")
MOST_VALUES = 1_000_000
"""Most values in a YAML document; an alias counts each time it is used."""


def cache(environ: Mapping[str, str] = os.environ) -> Path:
    """Orchestry's folder in the user's cache."""
    root = environ.get("XDG_CACHE_HOME") or Path(environ.get("HOME") or Path.home()) / ".cache"
    return Path(root).expanduser() / "orchestry"


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
