"""pytest, and what it needs, for a process that has no files."""

from __future__ import annotations

import functools
import marshal
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError

_NEEDED = ("pytest", "_pytest", "py", "pluggy", "iniconfig", "packaging")


@functools.cache
def library(compiled: bool) -> list[tuple[str, bool, bytes | str]]:
    """Name, whether it is a package, and code of each module: compiled for this Python, or source.

    Raises ConfigError if pytest is not installed.
    """
    if find_spec("pytest") is None:
        raise ConfigError(
            "pytest is not installed, and the problem's tests are a pytest file: "
            f"{install('pytest')}"
        )
    found = [one for top in _NEEDED for one in _modules(top)]
    return [(name, path.stem == "__init__", _code(path, compiled)) for name, path in found]


def _code(path: Path, compiled: bool) -> bytes | str:
    source = path.read_text(encoding="utf-8")
    if not compiled:
        return source
    return marshal.dumps(compile(source, f"<{path.stem}>", "exec", dont_inherit=True))


def _modules(top: str) -> Iterator[tuple[str, Path]]:
    """The modules of a package, or the one module."""
    spec = find_spec(top)
    if spec is None or spec.origin is None:  # what only some versions of pytest need
        return
    origin = Path(spec.origin)
    if spec.submodule_search_locations is None:
        yield top, origin
        return
    for path in sorted(origin.parent.rglob("*.py")):
        parts = [top, *path.relative_to(origin.parent).with_suffix("").parts]
        yield ".".join(parts).removesuffix(".__init__"), path
