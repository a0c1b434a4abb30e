"""Finished runs of benchmarks that take hours, kept in this repository as small archives.

So a long benchmark may be played seed by seed, on several days and machines, and everybody can
read the episodes behind its tables, or write the tables anew. What a report never reads is left
out: checkpoints, and of the journal what was asked and answered. So kept runs can be read, but not
resumed: keep a learner together with its measurements, which need its checkpoint. To play a run
again, delete its archive and its folder.

    python -m benchmarks.kept SECTION-PART FOLDER NAME...

packs the runs FOLDER/NAME (files too) into benchmarks/kept/SECTION-PART.tar.xz.
"""

from __future__ import annotations

import argparse
import io
import json
import tarfile
import tempfile
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from hashlib import blake2b
from pathlib import Path
from typing import Any

from benchmarks.stats import ended
from orchestry.core.config import RunConfig
from orchestry.core.files import is_run, json_lines
from orchestry.engine.run import resume, train
from orchestry.store.journal import encode, read
from orchestry.store.run import Run, load_run

KEPT = Path(__file__).resolve().parent / "kept"
LEFT_OUT = {"reserved", "answered", "scored"}
"""Kinds of journal lines."""
UNREAD = (
    "checkpoints",
    "start",
    "answers",
    "*.lock",
    "metrics.jsonl",
    "rewards.csv",
    "journal.head",
)
"""Files and folders."""


def to_its_end(config: RunConfig | Mapping[str, Any], place: Path) -> Run:
    """Begins a run, or goes on with it. Ends the process if it is stopped: no part of it counts."""
    run = resume(place) if is_run(place) else train(config, place)
    if run.summary.stopped != "done":
        raise SystemExit(f"{place}: {run.summary.stopped}; the same command goes on")
    return run


def kept_lines(file: Path) -> list[dict[str, Any]]:
    """Results of parts that are kept as JSON lines, oldest first."""
    return [json.loads(line) for _, line in json_lines(file.read_bytes())] if file.exists() else []


def keep_line(file: Path, line: Mapping[str, Any]) -> dict[str, Any]:
    """Appends a part's result, with the time; returns the line."""
    whole = {"at": datetime.now(UTC).isoformat(timespec="minutes"), **line}
    with file.open("a") as lines:
        lines.write(json.dumps(whole) + "\n")
    return whole


def span(lines: Iterable[Mapping[str, Any]]) -> str:
    """A sentence: when these results were played."""
    days = sorted(line["at"][:10] for line in lines)
    ends = " to ".join(dict.fromkeys(days[:1] + days[-1:])) or "on no day yet"
    return f"Played {ends}; date and revision above are those of the writing."


def keep(archive: Path, folder: Path, names: Sequence[str]) -> None:
    """Packs what lies in the folder under these names. Equal runs give equal bytes."""
    files = [found for name in names for found in _files(folder / name)]
    archive.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(archive, "w:xz", preset=9) as tar:
        for path in files:
            content = _thinned(path) if path.name == "journal.jsonl" else path.read_bytes()
            member = tarfile.TarInfo(str(path.relative_to(folder)))
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))


def place(folder: Path, name: str, *settings: object) -> Path:
    """Where the run of that name lies: a folder for each setting, so that no result of another one
    is ever taken for its own. `settings` are plain data, without paths, so that runs may be moved.
    """
    text = json.dumps(settings, sort_keys=True)
    return folder / f"{name}-{blake2b(text.encode(), digest_size=4).hexdigest()}"


def revisions(folder: Path, *patterns: str) -> str:
    """A sentence: at which revisions the runs in the folder with such names were played."""
    files = [file for one in patterns for file in folder.glob(f"{one}/**/manifest.json")]
    manifests = [json.loads(file.read_bytes()) for file in files]
    parts = [part for one in manifests for part in (one, *one.get("resumed", []))]
    found = sorted({str(part.get("git_revision"))[:7] for part in parts if "git_revision" in part})
    return f"Runs in the folder were played at revision {', '.join(found)}."


def restore(section: str, folder: Path, kept: Path = KEPT) -> None:
    """Puts all kept runs of a section into the folder, each whole, but for those that are there."""
    for archive in sorted(kept.glob(f"{section}-*.tar.xz")):
        folder.mkdir(parents=True, exist_ok=True)
        with tarfile.open(archive) as tar, tempfile.TemporaryDirectory(dir=folder) as part:
            tar.extractall(part, filter="data")
            for path in Path(part).iterdir():
                if not (folder / path.name).exists():
                    with suppress(OSError):  # a process beside this one was faster
                        path.rename(folder / path.name)


def _files(path: Path) -> Iterator[Path]:
    """The files of a run that a report may read, in a fixed order."""
    if not path.exists():
        raise SystemExit(f"{path} does not exist: name what lies in the folder")
    if (path / "episodes.jsonl").exists():
        ended(load_run(path))
    if path.is_file():
        yield path
        return
    for child in sorted(path.iterdir()):
        if not any(child.match(pattern) for pattern in UNREAD):
            yield from _files(child)


def _thinned(journal: Path) -> bytes:
    """The journal without what is left out, its checksums chained anew."""
    lines = list[bytes]()
    before = 0
    for event in read(journal):
        if event.kind not in LEFT_OUT:
            lines.append(encode(event, before))
            before = int(lines[-1][-11:-3], 16)
    return b"".join(lines)


def main() -> None:
    """Packs the runs that were named."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("part", metavar="SECTION-PART", help="the archive's name")
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="+", metavar="NAME")
    args = parser.parse_args()
    archive = KEPT / f"{args.part}.tar.xz"
    keep(archive, args.folder, args.names)
    print(f"{archive}: {archive.stat().st_size / 1e6:.2f} MB")


if __name__ == "__main__":
    main()
