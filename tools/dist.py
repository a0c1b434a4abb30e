"""What `.ci/release` asks about built distributions: their contents, and their oldest dependencies.

Runs in an environment that has `packaging` and not orchestry.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterable, Iterator
from email import message_from_bytes
from email.message import Message
from pathlib import Path

from packaging.requirements import Requirement

OWN = "orchestry-marl"
BUNDLED = ("tasks/", "configs/", "behaviors/")
"""Folders that the wheel holds below `orchestry/_bundled`."""


def metadata(wheel: Path) -> Message:
    """The wheel's METADATA."""
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        return message_from_bytes(archive.read(name))


def faults(dist: Path, tracked: set[str], tag: str = "") -> Iterator[str]:
    """Yields what is wrong in the folder `dist`, where `tracked` are the checkout's files.

    The wheel has to hold the package and the bundled folders, the source distribution all files,
    and neither anything else. A `tag` has to be the version's.
    """
    (wheel,), (sdist,) = dist.glob("*.whl"), dist.glob("*.tar.gz")
    with zipfile.ZipFile(wheel) as archive:
        held = {name for name in archive.namelist() if ".dist-info/" not in name}
    package = {name for name in tracked if name.startswith("orchestry/")}
    bundled = {f"orchestry/_bundled/{name}" for name in tracked if name.startswith(BUNDLED)}
    yield from _differences(wheel, held, package | bundled)
    with tarfile.open(sdist) as tar:
        packed = {member.name.partition("/")[2] for member in tar if member.isfile()}
    yield from _differences(sdist, packed, tracked | {"PKG-INFO"})
    version = metadata(wheel)["Version"]
    if tag and tag != f"v{version}":
        yield f"the tag is {tag}, but the version is {version}: tag v{version}"


def _differences(path: Path, held: set[str], wanted: set[str]) -> Iterator[str]:
    yield from (f"{path.name} lacks {name}" for name in sorted(wanted - held))
    yield from (f"{path.name} holds {name}" for name in sorted(held - wanted))


def oldest(required: Iterable[str], extras: Iterable[str]) -> Iterator[str]:
    """Yields a constraint per requirement, to its lower bound; ValueError if one has none.

    Without extras, those of the base install alone.
    """
    for line in required:
        one = Requirement(line)
        if one.name == OWN:  # an extra that takes another one in: name that too
            continue
        if one.marker and not any(one.marker.evaluate({"extra": e}) for e in ("", *extras)):
            continue
        bounds = [s.version for s in one.specifier if s.operator in (">=", "==", "~=")]
        if len(bounds) != 1:
            raise ValueError(f"{line}: give it one lower bound in pyproject.toml")
        yield f"{one.name}=={bounds[0]}"


def main(job: str, place: str, *extras: str) -> int:
    """`contents DIST` says what is wrong there, and `oldest DIST EXTRA...` prints constraints."""
    dist = Path(place)
    if job == "oldest":
        (wheel,) = dist.glob("*.whl")
        lines = sorted({*oldest(metadata(wheel).get_all("Requires-Dist", []), extras)})
    else:
        git = subprocess.run(["git", "ls-files", "-z"], capture_output=True, check=True)
        tracked = {name for name in git.stdout.decode().split("\0") if name}
        lines = list(faults(dist, tracked, os.environ.get("TAG", "")))
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return bool(lines) and job != "oldest"


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
