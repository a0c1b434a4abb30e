"""The standard library in memory, so that confined code can import it without files.

C modules are loaded before confinement; others are kept compiled and executed at their first
import. Modules for networks, windows, databases or raw memory are left out. Modules that only fail
when used are kept, because programs import more than they need.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import marshal
import mmap
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import EXTENSION_SUFFIXES, BuiltinImporter, FrozenImporter, ModuleSpec
from types import ModuleType
from typing import BinaryIO, cast

LEFT_OUT = frozenset(
    "_aix_support _crypt _ctypes _curses _curses_panel _dbm _gdbm _hashlib _osx_support "
    "_posixshmem _sqlite3 _ssl _tkinter _uuid antigravity cgi cgitb crypt ctypes curses dbm "
    "distutils ensurepip ftplib idlelib imaplib lib2to3 mailbox mailcap msilib nis nntplib "
    "ossaudiodev pip poplib pty pydoc_data readline site smtpd smtplib spwd sqlite3 syslog "
    "telnetlib test tkinter turtle turtledemo venv webbrowser wsgiref xmlrpc zipapp".split()
)
TWINS = frozenset(("_asyncio", "_zoneinfo"))
"""Optional C modules that import so much that each fork would be slower."""
WARM = (
    "abc ast base64 bisect calendar cmath collections.abc contextlib copy dataclasses datetime "
    "decimal enum fractions functools hashlib heapq inspect io itertools json math numbers "
    "operator queue random re statistics string struct textwrap threading time typing "
    "unicodedata encodings.ascii encodings.latin_1 encodings.utf_16 encodings.utf_32 "
    "_strptime"
).split()
"""The most imported modules, loaded once before the first run."""


class Image(MetaPathFinder, Loader):
    """A finder for compiled modules in memory."""

    def __init__(self, library: str) -> None:
        self._places: dict[str, slice] = {}
        """Per module: the position of its code in memory, or its source."""
        self._packages: set[str] = set()
        end = 0
        with _unnamed() as file:
            for name, path, package in _modules(library):
                self._places[name] = slice(end, end := end + file.write(_read(path)))
                if package:
                    self._packages.add(name)
            if not end:
                raise OSError(f"the standard library is in no folder ({library})")
            file.flush()
            # Not the heap, whose page table each fork has to copy. Private, so that a child which
            # could write to it would write to its own copy.
            self._memory = mmap.mmap(file.fileno(), end, mmap.MAP_PRIVATE, mmap.PROT_READ)

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """A module of the image, or None."""
        if fullname not in self._places:
            return None
        return ModuleSpec(fullname, self, is_package=fullname in self._packages)

    def exec_module(self, module: ModuleType) -> None:
        """Runs its code in it."""
        raw = self._memory[self._places[module.__name__]]
        if raw.startswith(_COMPILED):
            code = marshal.loads(raw[1:])
        else:
            code = compile(raw, "<library>", "exec", dont_inherit=True)
        exec(code, vars(module))  # noqa: S102


_COMPILED = b"\0"  # no source begins with it


def serve_imports() -> None:
    """From here on imports are served from memory alone."""
    library = os.path.dirname(os.__file__)
    image = Image(library)
    left_out = (LEFT_OUT | TWINS) - sys.modules.keys()
    sys.modules.update(dict.fromkeys(left_out))  # type: ignore[arg-type]
    _load_extensions(library)
    for name in WARM:
        if importlib.util.find_spec(name):
            importlib.import_module(name)
    for name in left_out:
        del sys.modules[name]
    sys.meta_path[:] = [BuiltinImporter, FrozenImporter, image]
    sys.path_hooks.clear()
    sys.path_importer_cache.clear()
    sys.path.clear()
    gc.collect()


def _unnamed() -> BinaryIO:
    """A file that no other process can open; in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        return os.fdopen(os.memfd_create("library"), "w+b")
    return cast(BinaryIO, tempfile.TemporaryFile())


def _modules(library: str) -> Iterator[tuple[str, str, bool]]:
    """Name, source file and whether it is a package, for all included modules."""
    for folder, folders, files in os.walk(library):
        package = os.path.relpath(folder, library).replace(os.sep, ".")
        inside = package != "."
        folders[:] = [
            f for f in folders if f.isidentifier() and (inside or f not in LEFT_OUT) and f != "test"
        ]
        if inside and "__init__.py" not in files:
            folders.clear()
            continue
        for file in files:
            stem, suffix = os.path.splitext(file)
            named = stem.isidentifier() or stem.startswith("_sysconfigdata_")  # for a machine
            if suffix != ".py" or (not inside and stem in LEFT_OUT) or not named:
                continue
            path = os.path.join(folder, file)
            if stem != "__init__":
                yield (f"{package}.{stem}" if inside else stem), path, False
            elif inside:
                yield package, path, True


def _read(path: str) -> bytes:
    """The module's compiled code from the interpreter's cache, else its source."""
    with contextlib.suppress(OSError), open(importlib.util.cache_from_source(path), "rb") as file:
        data = file.read()
        if data.startswith(importlib.util.MAGIC_NUMBER):
            return _COMPILED + data[16:]
    with open(path, "rb") as file:
        return file.read()


def _load_extensions(library: str) -> None:
    """Loads C modules now; later this would need a file and executable memory."""
    folder = os.path.join(library, "lib-dynload")
    for file in sorted(os.listdir(folder)) if os.path.isdir(folder) else []:
        name = file.partition(".")[0]
        tests = name.startswith(("_test", "_ctypes_test", "_xx", "xx"))
        if file.endswith(tuple(EXTENSION_SUFFIXES)) and not tests and name not in sys.modules:
            importlib.import_module(name)
