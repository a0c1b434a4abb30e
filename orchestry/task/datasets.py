"""Problems from data sets: rows from a hub or a local copy, and their splits. The content of a row
does not matter here.
"""

from __future__ import annotations

import gzip
import hashlib
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import chain, islice
from pathlib import Path
from typing import Any

from orchestry.core import errors
from orchestry.core.distribution import install
from orchestry.core.types import Problem, Split
from orchestry.task.base import read_problems
from orchestry.task.humaneval import HUB, function
from orchestry.task.humaneval import Function as Function

_UNREADABLE = (OSError, EOFError, zlib.error, UnicodeDecodeError)
_Row = tuple[str, Any]
"""A row's place, for messages, and its content."""


def rows(hub: str, path: Path | None) -> Iterator[_Row]:
    """The rows in order, all of the data set's own splits.

    `path` is a .jsonl, .json (both also .gz) or .parquet file, or a folder written by
    `datasets.save_to_disk`. Without it, rows come from `hub`, or from the cache of `datasets`.
    Raises ConfigError if they can't be reached, TaskError if they can't be read.
    """
    if path is None:
        return _numbered(hub, _fetched(hub))
    if not path.exists():
        raise errors.ConfigError(
            f"options.path {path} does not exist: name a local copy of {hub}, or leave "
            "options.path out to fetch it"
        )
    if path.is_dir():
        return _numbered(str(path), _saved(path))
    if path.suffix == ".parquet":
        return _numbered(str(path), _columns(path))
    if path.name.removesuffix(".gz").endswith((".jsonl", ".json")):
        return _texts(path)
    raise errors.ConfigError(
        f"options.path {path} is of no kind known here: give .jsonl, .json (either also .gz), "
        ".parquet, or a folder written by datasets.save_to_disk"
    )


def own(path: Path, split: Split, banks: Iterable[str]) -> Sequence[Problem]:
    """The problems of one split of a file in the task's own format; `banks` are its data sets.

    Raises ConfigError if the file does not exist, TaskError if it has another format.
    """
    path = path.expanduser()
    if not path.exists():
        raise errors.ConfigError(
            f"options.path {path} does not exist: name a file of problems, or leave out "
            "options.path for the task's own"
        )
    try:
        return read_problems(path, split)
    except errors.TaskError as error:
        raise errors.TaskError(
            f"{error}; a copy of a data set needs options.bank: {', '.join(banks)}"
        ) from None


def functions(bank: str, path: Path | None) -> Sequence[Function]:
    """The functions of `bank`, `humaneval` or `coophumaneval`, in the data set's order.

    `path` as in `rows`. Raises ConfigError if the data set can't be reached, TaskError naming file
    and row where its content is not of the right shape.
    """
    found: dict[str, Function] = {}
    for where, row in rows(HUB[bank], path):
        one = function(bank, where, row)
        if one.id in found:
            raise errors.TaskError(f"{where}: a second row of the id '{one.id}': drop one")
        found[one.id] = one
    if not found:
        raise errors.TaskError(f"{path or HUB[bank]} has no rows: give a whole copy of {HUB[bank]}")
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Texts:
    """A data set in which one field of a row is the whole problem."""

    hub: str
    field: str
    prefix: str
    """Prefix of its problems' ids; the rest is a hash of the text."""
    cleaned: Callable[[str], str] = str.strip

    def problems(self, path: Path | None, most: int, split: Split) -> Sequence[Problem]:
        """The problems of one split among the first `most` rows, in the data set's order.

        A repeated text is one problem. We make the splits, by a hash of the text. Raises
        ConfigError if the data set can't be reached, TaskError naming file and row if a row has the
        wrong form.
        """
        whole = _texts_of(self, path.expanduser().absolute() if path else None, most)
        return tuple(problem for problem in whole if problem.split == split)

    def problem(self, where: str, row: Any) -> Problem:
        """One row. Raises TaskError if it has no text."""
        text = row.get(self.field) if isinstance(row, Mapping) else None
        if not isinstance(text, str):
            raise errors.TaskError(
                f"{where} has no text in '{self.field}': is it a row of {self.hub}, which "
                "options.bank names?"
            )
        if not (text := self.cleaned(text)):
            raise errors.TaskError(f"{where} has nothing in '{self.field}': leave the row out")
        problem_id = f"{self.prefix}_{hashlib.sha256(text.encode()).hexdigest()[:12]}"
        return Problem(id=problem_id, prompt=text, split=split_of(problem_id))


@lru_cache(maxsize=4)  # a run asks for its splits repeatedly
def _texts_of(source: Texts, path: Path | None, most: int) -> tuple[Problem, ...]:
    found: dict[str, Problem] = {}
    for where, row in islice(rows(source.hub, path), most):
        problem = source.problem(where, row)
        found.setdefault(problem.id, problem)
    if not found:
        raise errors.TaskError(
            f"{path or source.hub} has no rows: give a whole copy of {source.hub}"
        )
    return tuple(found.values())


def split_of(problem_id: str) -> Split:
    """60 % train, 20 % dev, 20 % test; independent of other rows, so no row ever moves."""
    place = int(hashlib.sha256(problem_id.encode()).hexdigest()[:8], 16) % 100
    return "train" if place < 60 else "dev" if place < 80 else "test"


def _numbered(source: str, found: Iterable[Any]) -> Iterator[_Row]:
    return ((f"{source}, row {number}", row) for number, row in enumerate(found, start=1))


def _texts(path: Path) -> Iterator[_Row]:
    """The rows of a file with a JSON list or JSON lines."""
    try:
        content = path.read_bytes()
        text = (gzip.decompress(content) if path.suffix == ".gz" else content).decode("utf-8-sig")
    except _UNREADABLE as error:
        raise errors.TaskError(
            f"{path} can't be read ({errors.reason(error)}): fetch it again, or check its rights"
        ) from None
    if text.lstrip().startswith("["):
        yield from _numbered(str(path), _json(f"{path}", text))
        return
    for number, line in enumerate(text.split("\n"), start=1):  # not at a raw U+2028
        if line.strip():
            where = f"{path}, line {number}"
            yield where, _json(where, line)


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.TaskError(
            f"{where} is not JSON ({errors.reason(error)}): fetch the file again, or mend it"
        ) from None


def _fetched(hub: str) -> Iterable[Any]:
    datasets = _need("datasets", f"to fetch {hub}")
    try:
        return _of_all_splits(datasets.load_dataset(hub))
    except Exception as error:  # its HTTP client's errors are not OSErrors
        raise errors.ConfigError(
            f"{hub} can't be fetched ({type(error).__name__}: {errors.reason(error)}): go "
            "online, or name a local copy in options.path"
        ) from error


def _saved(path: Path) -> Iterable[Any]:
    datasets = _need("datasets", f"to read the folder {path}")
    try:
        return _of_all_splits(datasets.load_from_disk(str(path)))
    except FileNotFoundError:
        raise errors.ConfigError(
            f"options.path {path} was not written by datasets.save_to_disk: name the .parquet or "
            ".jsonl file in it"
        ) from None
    except Exception as error:  # Arrow's own errors are of many kinds
        raise errors.TaskError(
            f"{path} can't be read ({errors.reason(error)}): save it again by datasets.save_to_disk"
        ) from error


def _of_all_splits(loaded: Any) -> Iterable[Any]:
    """Lazy: only as many rows are read as the caller takes."""
    return chain.from_iterable(loaded.values() if isinstance(loaded, Mapping) else [loaded])


def _columns(path: Path) -> list[Any]:
    """Uses pyarrow (installed with `datasets`), which leaves no copy in the user's cache."""
    parquet = _need("pyarrow.parquet", f"to read {path}")
    try:
        found: list[Any] = parquet.read_table(str(path)).to_pylist()
    except (OSError, ValueError) as error:
        raise errors.TaskError(
            f"{path} can't be read ({errors.reason(error)}): fetch it again"
        ) from error
    return found


def _need(module: str, purpose: str) -> Any:
    package = module.partition(".")[0]
    spec = find_spec(package)
    if spec is None or spec.origin is None:  # the latter: only a folder of that name
        raise errors.ConfigError(
            f"{package} is not installed, and is needed {purpose}: "
            f"{install('datasets')}, or name a .jsonl copy in options.path"
        )
    return import_module(module)
