"""Problems from data sets: rows from a hub or a local copy, and their splits; and from folders. The
content of a row does not matter here.
"""

from __future__ import annotations

import csv
import dataclasses
import gzip
import hashlib
import io
import json
import re
import zlib
from bisect import bisect
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from importlib import import_module
from importlib.util import find_spec
from itertools import accumulate, chain, islice, zip_longest
from pathlib import Path
from typing import Any

from orchestry.core import errors, extensions
from orchestry.core.distribution import install
from orchestry.core.files import json_lines, text_of
from orchestry.core.types import SPLITS, Problem, Split
from orchestry.task.base import read_problems, writable
from orchestry.task.functions import Function as Function
from orchestry.task.functions import FunctionSet

_SAVED = ("dataset_dict.json", "state.json")
"""What `datasets.save_to_disk` writes."""
_NUMBERED = re.compile(r"-\d+-of-\d+$")
"""How a hub's files of one split end."""
PROMPT, TESTS, GOLD, STARTER = "prompt.md", "test_solution.py", "solution.py", "starter.py"
"""A problem's files in a folder."""
_WRAPPED = 3
"""Most keys of an object that is only wrapped around a list of rows."""
_SHARES: dict[Split, int] = {"train": 60, "dev": 20, "test": 20}
_UNREADABLE = (OSError, EOFError, zlib.error, UnicodeDecodeError)
_Row = tuple[str, Any]
"""A row's place, for messages, and its content."""


def rows(hub: str, path: Path | None) -> Iterator[_Row]:
    """The rows in order, all of the data set's own splits.

    `path` is a .csv, .jsonl, .json (each also .gz) or .parquet file, a folder of files of the last
    three kinds that are named after their splits, or a folder written by `datasets.save_to_disk`.
    Without it, rows come from `hub`, or from the cache of `datasets`. Raises ConfigError if they
    can't be reached, TaskError if they can't be read.
    """
    return chain.from_iterable(_parts(hub, path).values())


def _parts(hub: str, path: Path | None, subset: str | None = None) -> dict[str, Iterator[_Row]]:
    """The rows of each of the data set's own splits; of '' where it has none."""
    if path is None:
        return _split(hub, _fetched(hub, subset))
    if not path.exists():
        if not hub:
            raise errors.ConfigError(f"{path} does not exist: name a file of problems")
        raise errors.ConfigError(
            f"options.path {path} does not exist: name a local copy of {hub}, or leave "
            "options.path out to fetch it"
        )
    if not path.is_dir():
        return {"": _file(path)}
    if files := [one for place in (path, path / "data") for one in sorted(place.glob("*.*"))]:
        found = dict[str, list[Iterator[_Row]]]()
        for file in filter(_readable, files):
            name = _NUMBERED.sub("", file.name.partition(".")[0])
            found.setdefault(name, []).append(_file(file))
        if found and not any((path / name).exists() for name in _SAVED):
            return {name: chain.from_iterable(parts) for name, parts in found.items()}
    return _split(str(path), _saved(path))


def _split(source: str, loaded: Any) -> dict[str, Iterator[_Row]]:
    if not isinstance(loaded, Mapping):
        return {"": _numbered(source, loaded)}
    return {str(name): _numbered(f"{source}, {name}", loaded[name]) for name in loaded}


def _readable(path: Path) -> bool:
    return path.name.removesuffix(".gz").endswith((".jsonl", ".json", ".parquet"))


def _file(path: Path) -> Iterator[_Row]:
    if is_csv(path):
        return _numbered(str(path), _cells(path))
    if not _readable(path):
        raise errors.ConfigError(
            f"{path} is of no kind known here: give .jsonl, .json, .csv (each also .gz), "
            ".parquet, or a folder written by datasets.save_to_disk"
        )
    if path.suffix == ".parquet":
        return _numbered(str(path), _columns(path))
    return ((where, row) for where, row in _texts(path) if writable(where, row))


def own(path: Path | str, split: Split, banks: Iterable[str]) -> Sequence[Problem]:
    """The problems of one split of a file in the task's own format, or of a folder as `folder`
    reads it; `banks` are the task's data sets.

    Raises ConfigError if the file does not exist, TaskError if it has another format.
    """
    path = Path(path).expanduser()
    if not path.exists():
        raise errors.ConfigError(
            f"options.path {path} does not exist: name a file of problems, or leave out "
            "options.path for the task's own"
        )
    try:
        return folder(path, split) if path.is_dir() else read_problems(path, split)
    except errors.TaskError as error:
        raise errors.TaskError(
            f"{error}; a copy of a data set needs options.bank: {', '.join(banks)}"
        ) from None


def functions(bank: str, path: Path | None) -> Sequence[Function]:
    """The functions of `bank`, `humaneval`, `coophumaneval` or `leetcode`, in the data set's order.

    `path` as in `rows`. Of `leetcode`, entries that no call can test are left out. Raises
    ConfigError if the data set is unknown or can't be reached, TaskError naming file and row where
    its content is not of the right shape, and if all is left out.
    """
    source: FunctionSet = extensions.find("datasets", bank)
    found: dict[str, Function] = {}
    left_out = Counter[str]()
    for where, row in rows(source.hub, path):
        one = source.function(where, row)
        if isinstance(one, str):
            left_out[one] += 1
            continue
        if one.id in found:
            raise errors.TaskError(f"{where}: a second row of the id '{one.id}': drop one")
        found[one.id] = one
    if not found and left_out:
        why = ", ".join(f"{count} {reason}" for reason, count in left_out.most_common())
        raise errors.TaskError(
            f"{path or source.hub} has no entry that can be a problem: {why}; give entries whose "
            "starter code is one function of plain values, with an example and a test"
        )
    if not found:
        raise errors.TaskError(
            f"{path or source.hub} has no rows: give a whole copy of {source.hub}"
        )
    return tuple(found.values())


@dataclass(frozen=True, slots=True)
class Texts:
    """A data set in which one field of a row is the whole problem."""

    hub: str
    field: str
    prefix: str
    """Prefix of its problems' ids; the rest is a hash of the text."""
    cleaned: Callable[[str], str] = str.strip
    splits: Mapping[Split, str] = dataclasses.field(default_factory=dict, hash=False)
    """The data set's split for each of ours, as in `Columns`, for `published`."""

    def problems(
        self, path: Path | str | None, most: int, split: Split, published: bool = False
    ) -> Sequence[Problem]:
        """The problems of one split among the first `most` rows, in the data set's order.

        A repeated text is one problem. We make the splits, by a hash of the text; or with
        `published` they are those that `splits` names, with the first `most` rows of each of the
        data set's own. Raises ConfigError if the data set can't be reached or has no such split,
        TaskError naming file and row if a row has the wrong form.
        """
        place = Path(path).expanduser().absolute() if path else None
        whole = _texts_of(self, place, most, published)
        return tuple(problem for problem in whole if problem.split == split)

    def problem(self, where: str, row: Any) -> Problem:
        """One row. Raises TaskError if it has no text."""
        text = row.get(self.field) if isinstance(row, Mapping) else None
        if isinstance(text, list) and all(isinstance(one, str) for one in text):
            text = " ".join(text)  # a sentence each
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
def _texts_of(source: Texts, path: Path | None, most: int, published: bool) -> tuple[Problem, ...]:
    parts, named = _parts(source.hub, path), source.splits
    if not published:
        parts, named = {"": chain.from_iterable(parts.values())}, dict.fromkeys(SPLITS, "")
    found: dict[str, Problem] = {}
    for ours, rows_of in _shared(str(path or source.hub), parts, named):
        for where, row in islice(rows_of, most):
            one = source.problem(where, row)
            one = one.model_copy(update={"split": split_of(one.id, ours)})
            found.setdefault(one.id, one)
    if not found:
        raise errors.TaskError(
            f"{path or source.hub} has no rows: give a whole copy of {source.hub}"
        )
    return tuple(found.values())


def _shared(
    source: str, parts: Mapping[str, Iterator[_Row]], named: Mapping[Split, str]
) -> Iterator[tuple[list[Split], Iterator[_Row]]]:
    """The data set's splits that are wanted, each with those of ours that share its rows.

    Raises ConfigError for one that it does not have.
    """
    for name in dict.fromkeys(named.values()):
        if name not in parts:
            there = ", ".join(parts).strip() or "rows without any"
            raise errors.ConfigError(
                f"{source} has no split '{name}', only {there}: name others in `splits` (one may "
                "stand for several, which then share its rows), or give a copy that has it, for "
                "instance a folder with a file for each"
            )
        yield [split for split in SPLITS if named.get(split) == name], parts[name]


@dataclass(frozen=True, slots=True)
class Columns:
    """A data set in which each row is a problem: which of its columns is what."""

    hub: str = ""
    """Where it is fetched; '': it is a local file or folder."""
    prompt: str = "prompt"
    """The column of the prompt."""
    data: Mapping[str, str] = field(default_factory=dict)
    """By the names that they get in `Problem.data`: columns that the reward needs."""
    id: str = ""
    """The column of the ids; '': they are made of the row."""
    subset: str | None = None
    """The data set's configuration, if it has several."""
    splits: Mapping[Split, str] = field(
        default_factory=lambda: {"train": "train", "dev": "validation", "test": "test"}
    )
    """The data set's split for each of ours. Where several of ours name the same, its rows are
    shared among them by a hash of the id, 60 to 20 to 20. So is a file that has no splits."""
    most: int | None = None
    """Rows that are read of each of the data set's splits; None: all."""
    skip_empty: bool = False
    """Whether a row with an empty cell (null) in a named column is left out, or an error."""

    def problems(self, path: Path | str | None, split: Split) -> Sequence[Problem]:
        """The problems of one split, in the data set's order; `path` as in `rows`.

        A repeated row is one problem. Raises ConfigError if the data set can't be reached or has no
        such split, TaskError naming the row if it lacks a column, has nothing in it, or repeats
        another one's id.
        """
        if not path and not self.hub:
            raise errors.ConfigError("Columns without a hub needs the path of a file: give it")
        return _problems_of(self, Path(path).expanduser().absolute() if path else None)[split]

    def problem(self, where: str, row: Any, split: Split = "train") -> Problem:
        """One row. Raises TaskError if it lacks a column, or has nothing in it."""
        for column in self._columns:
            if not isinstance(row, Mapping) or column not in row:
                there = f"only {', '.join(map(str, row))}" if isinstance(row, Mapping) else "none"
                raise errors.TaskError(f"{where} has no column '{column}', {there}: name another")
            if row[column] is None:
                raise errors.TaskError(
                    f"{where} has an empty cell in column '{column}': fill it or take the row "
                    "out, or give Columns skip_empty=True, which leaves such rows out"
                )
        data = {name: row[column] for name, column in self.data.items()}
        prompt = str(row[self.prompt])
        made = hashlib.sha256(f"{prompt}\n{json.dumps(data, default=str)}".encode()).hexdigest()[
            :12
        ]
        given = re.sub(r"[^\w.-]+", "_", str(row[self.id]), flags=re.ASCII) if self.id else made
        return Problem(id=given, prompt=prompt, data=data, split=split)

    @property
    def _columns(self) -> tuple[str, ...]:
        """Those that a row must have."""
        return tuple(filter(None, (self.prompt, *self.data.values(), self.id)))

    def taken(self, found: Iterator[_Row]) -> Iterator[_Row]:
        """The rows that become problems."""
        for where, row in islice(found, self.most):
            empty = isinstance(row, Mapping) and any(row.get(c, "") is None for c in self._columns)
            if not (empty and self.skip_empty):
                yield where, row

    def __hash__(self) -> int:
        return hash((self.hub, self.subset, self.prompt, self.id))


@lru_cache(maxsize=4)  # a run asks for its splits repeatedly
def _problems_of(source: Columns, path: Path | None) -> dict[Split, tuple[Problem, ...]]:
    parts = _parts(source.hub, path, source.subset)
    named: dict[Split, str] = dict.fromkeys(SPLITS, "") if [*parts] == [""] else {**source.splits}
    found = dict[str, Problem]()
    for ours, rows_of in _shared(str(path or source.hub), parts, named):
        for where, row in source.taken(rows_of):
            one = source.problem(where, row)
            one = one.model_copy(update={"split": split_of(one.id, ours)})
            if found.setdefault(one.id, one) != one:
                raise errors.TaskError(f"{where}: a second row of the id '{one.id}': drop one")
    whole = tuple(found.values())
    return {split: tuple(one for one in whole if one.split == split) for split in SPLITS}


def split_of(problem_id: str, among: Sequence[Split] = SPLITS) -> Split:
    """60 % train, 20 % dev, 20 % test, or the same shares of some of them; independent of other
    rows, so no row ever moves."""
    ends = [*accumulate(_SHARES[split] for split in among)]
    place = int(hashlib.sha256(problem_id.encode()).hexdigest()[:8], 16) % ends[-1]
    return among[bisect(ends, place)]


def folder(path: Path | str, split: Split) -> tuple[Problem, ...]:
    """The problems of one split of a folder, by name.

    A problem is a folder NAME with `prompt.md` and `test_solution.py`, a pytest file that imports
    `solution`; if you like also `solution.py`, which passes it, and `starter.py`, which the agents
    see. These are `pytest`, `reference` and `starter` of its data. The problems of a split lie in a
    folder of its name; without such folders, splits are by a hash of NAME. Raises TaskError naming
    what lacks.
    """
    path = Path(path).expanduser()
    divided = any((path / name).is_dir() for name in SPLITS)
    homes = [path / name for name in SPLITS if (path / name).is_dir()] if divided else [path]
    found = dict[str, Problem]()
    for place in [one for home in homes for one in sorted(home.iterdir()) if one.is_dir()]:
        if place.name.startswith((".", "_")):
            continue
        if place.name in found:
            raise errors.TaskError(f"{path} has two problems '{place.name}': rename one")
        ours = next((s for s in SPLITS if divided and s == place.parent.name), split_of(place.name))
        found[place.name] = _problem_in(place, ours)
    if not found:
        raise errors.TaskError(f"{path} has no problems: give each a folder with {PROMPT}, {TESTS}")
    return tuple(one for one in found.values() if one.split == split)


def _problem_in(place: Path, split: Split) -> Problem:
    prompt, data = _text(place / PROMPT).strip(), {"pytest": _text(place / TESTS)}
    for key, name in (("reference", GOLD), ("starter", STARTER)):
        if (place / name).exists():
            data[key] = _text(place / name)
    return Problem(id=place.name, prompt=prompt, data=data, split=split)


def _text(path: Path) -> str:
    try:
        return text_of(path.read_bytes())
    except (OSError, UnicodeDecodeError) as error:
        raise errors.TaskError(
            f"{path} can't be read ({errors.reason(error)}): each problem has {PROMPT} and "
            f"{TESTS}, as UTF-8"
        ) from None


def _numbered(source: str, found: Iterable[Any]) -> Iterator[_Row]:
    return ((f"{source}, row {number}", row) for number, row in enumerate(found, start=1))


def _content(path: Path) -> tuple[bytes, str]:
    """A file's bytes and text."""
    try:
        content = path.read_bytes()
        content = gzip.decompress(content) if path.suffix == ".gz" else content
        return content, text_of(content)
    except _UNREADABLE as error:
        raise errors.TaskError(
            f"{path} can't be read ({errors.reason(error)}): fetch it again, or check its rights"
        ) from None


def is_csv(path: Path) -> bool:
    """Whether its rows are lines of cells, below a line with their names."""
    return path.name.lower().removesuffix(".gz").endswith(".csv")


def _cells(path: Path) -> Iterator[dict[str, str | None]]:
    """The rows of a CSV file; an empty cell is None, and a column without a name (such as pandas'
    index) is left out."""
    _, text = _content(path)
    csv.field_size_limit(max(csv.field_size_limit(), len(text)))  # of a cell
    lines = csv.reader(io.StringIO(text), strict=True)
    try:
        names = [name.strip() for name in next(lines, [])]
        if twice := [name for name, count in Counter(names).items() if name and count > 1]:
            raise errors.TaskError(f"{path} has two columns '{twice[0]}': rename one")
        for row in filter(any, lines):
            if len(row) > len(names):
                raise errors.TaskError(
                    f"{path}, line {lines.line_num} has {len(row)} cells below {len(names)} names: "
                    "put quotes around a cell with a comma"
                )
            cells = zip_longest(names, row)
            yield {name: cell or None for name, cell in cells if name}
    except csv.Error as error:
        raise errors.TaskError(
            f"{path}, line {lines.line_num} is not CSV ({error}): put a cell with quotes in it "
            "into quotes, and double each of its own"
        ) from None


def _texts(path: Path) -> Iterator[_Row]:
    """The rows of a file with a JSON list or JSON lines."""
    content, text = _content(path)
    if text.lstrip().startswith("["):
        yield from _numbered(str(path), _json(f"{path}", text))
        return
    if path.name.removesuffix(".gz").endswith(".json") and (listed := _listed(text)):
        yield from _numbered(str(path), listed)
        return
    for number, line in json_lines(content):
        where = f"{path}, line {number}"
        yield where, _json(where, line.decode())


def _listed(text: str) -> list[Any]:
    """The rows of a JSON object whose one list they are, as in `{"questions": [...]}`; or none."""
    try:
        whole = json.loads(text)
    except (ValueError, RecursionError):
        return []  # JSON lines, or what is told line by line
    if not isinstance(whole, dict):
        return []  # it is told as a line
    lists = [value for value in whole.values() if isinstance(value, list)]
    rows = lists[0] if len(lists) == 1 and len(whole) <= _WRAPPED else []
    return rows if all(isinstance(row, dict) for row in rows) else []


def _json(where: str, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise errors.TaskError(
            f"{where} is not JSON ({errors.reason(error)}): fetch the file again, or mend it"
        ) from None


def _fetched(hub: str, subset: str | None) -> Any:
    datasets = _need("datasets", f"to fetch {hub}")
    try:
        return datasets.load_dataset(hub, subset)
    except Exception as error:  # its HTTP client's errors are not OSErrors
        raise errors.ConfigError(
            f"{hub} can't be fetched ({type(error).__name__}: {errors.reason(error)}): go "
            "online, or name a local copy in options.path"
        ) from error


def _saved(path: Path) -> Any:
    datasets = _need("datasets", f"to read the folder {path}")
    try:
        return datasets.load_from_disk(str(path))
    except FileNotFoundError:
        raise errors.ConfigError(
            f"options.path {path} was not written by datasets.save_to_disk: name the .parquet or "
            ".jsonl file in it"
        ) from None
    except Exception as error:  # Arrow's own errors are of many kinds
        raise errors.TaskError(
            f"{path} can't be read ({errors.reason(error)}): save it again by datasets.save_to_disk"
        ) from error


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
