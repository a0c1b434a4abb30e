"""`orchestry doctor`: what this machine can run, and what is missing."""

from __future__ import annotations

import asyncio
import os
import platform
import shutil
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from importlib import import_module, metadata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from orchestry import __version__
from orchestry.cli import dotenv
from orchestry.cli.groups import App
from orchestry.cli.options import RUN, SAFETY, Config, Json, config_from, flag, option
from orchestry.cli.screen import console
from orchestry.core.distribution import NAME, install, namesakes
from orchestry.core.errors import OrchestryError, reason
from orchestry.core.secrets import REFUSED, bare_address

if TYPE_CHECKING:
    from orchestry.core.config import RunConfig

_Mark = Literal["ok", "absent", "bad"]
SDKS = {"anthropic": "anthropic", "openai": "openai", "xllamacpp": "embedded"}
"""From a package to the extra that installs it."""
_APART = "to draw answers with it, install vllm in an environment of its own: see learn.vllm_url"
ROOM_MB = 500
CODE = "def double(n):\n    return 2 * n\n"
app = App()


@dataclass(frozen=True, slots=True)
class _Check:
    """One check. `absent` is fine unless the user needs it; `bad` is an error."""

    name: str
    mark: _Mark
    found: str
    fix: str = ""


@app.command("doctor")
def _command(
    file: Config = None,
    keys: Annotated[
        bool,
        flag(
            SAFETY,
            "Ask each vendor whose key is set for one token, for less than a cent each.",
            "--keys",
        ),
    ] = False,
    fits: Annotated[
        list[str] | None,
        option(
            RUN,
            "Memory that backend local needs for this model, and the time of an update if it is "
            "here: a folder, a hub's name, or a part of a known one's, such as 1.5B; may be "
            "repeated.",
            "--fits",
            metavar="MODEL",
        ),
    ] = None,
    gpu: Annotated[
        str | None,
        option(RUN, "The same on that GPU, such as l4 or a100.", "--gpu", metavar="NAME"),
    ] = None,
    as_json: Json = False,
) -> int:
    """Check this machine: providers, GPU, weights, sandbox, disk, and what fits into memory.

    It changes nothing, and runs one test program in the sandbox. Exit code 1 if something is
    broken. With --config it also checks key, package and model of each provider that the config
    names; memory is estimated for its settings if it is one of backend local. With --keys it also
    says of each vendor whether it takes your key.
    """
    from orchestry.cli.console import Console, Notes

    note = Notes(Console(stderr=True))
    config = config_from(file=file) if file else None
    note("1 of 2: packages, keys, models, sandbox, tasks and disks")
    checks = [*_examine(), *(_providers(config) if config else ())]
    own = config if config and config.backend == "local" else config_from(backend="local")
    note("2 of 2: processor, GPU and what fits; torch is loaded, which may take a minute")
    checks += _hardware(own, fits or [], gpu)
    checks += _tried(config) if keys else ()
    if as_json:
        import json

        typer.echo(json.dumps({"checks": [asdict(check) for check in checks]}))
    else:
        _print(checks)
    return 1 if any(check.mark == "bad" for check in checks) else 0


def _examine() -> Iterator[_Check]:
    """All checks, in the order in which a run needs them."""
    yield _Check("orchestry", "ok", f"{__version__} on Python {platform.python_version()}")
    yield from _namesakes()
    for package, extra in SDKS.items():
        yield _package(package, extra)
    for key in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY"):
        yield _key(key)
    for variable in ("ANTHROPIC_BASE_URL", "OPENAI_BASE_URL"):
        if url := os.environ.get(variable):
            yield _address(variable, url)
        elif why := os.environ.get(f"{REFUSED}{variable}"):
            yield _Check(variable, "absent", why)
    yield _weights()
    yield _models()
    yield _prices()
    yield asyncio.run(_sandbox())
    yield _tasks()
    yield from _disks()


def _hardware(config: RunConfig, models: list[str], gpu: str | None) -> Iterator[_Check]:
    """Processor, GPU, what learns on it, and what fits. Raises ConfigError for an unknown GPU, and
    for a model of unknown sizes."""
    from orchestry.backends.local.model import hush
    from orchestry.cli.hardware import cards, hardware, room, what_fits

    hush()
    found = cards()
    yield from (_Check(*line) for line in hardware(found))
    yield _package("bitsandbytes", "quantize")
    vllm = _package("vllm", "vllm")
    yield replace(vllm, fix=_APART) if vllm.mark == "absent" else vllm
    into = room(gpu, found)
    try:
        yield from (_Check(*line) for line in what_fits(config, models, into))
    except OrchestryError as error:
        if models:
            raise
        yield _Check("fits", "bad", str(error))


def _namesakes() -> Iterator[_Check]:
    """Another project's `orchestry`, or an old installation of ours."""
    for found, ours in namesakes():
        about = f"{found.name} {found.version} at {found.locate_file('')}"
        again = f"then install {NAME} again: both write the command and the folder `orchestry`"
        if ours:
            fix = f"pip uninstall orchestry, {again}"
            yield _Check("old name", "absent", f"{about} is an old installation of ours", fix)
        else:
            summary = found.metadata["Summary"] or "no summary"
            fix = f"pip uninstall orchestry {NAME}, {again}"
            yield _Check("name", "bad", f"{about} is another project's ({summary})", fix)


def _package(package: str, extra: str) -> _Check:
    try:
        version = metadata.version(package)
        import_module(package)
    except metadata.PackageNotFoundError:
        return _Check(package, "absent", "not installed", install(extra))
    except ImportError as error:  # often a library of the system that it needs, such as libgomp1
        fix = "install the library that is named, from your system's packages"
        return _Check(package, "bad", f"{version} can't be imported: {reason(error)}", fix)
    return _Check(package, "ok", version)


def _key(name: str) -> _Check:
    if os.environ.get(name):
        return _Check(name, "ok", f"set{_origin(name)}")
    return _Check(name, "absent", "not set", f"export {name}=... to use that vendor")


def _origin(name: str) -> str:
    return ", from .env" if name in dotenv.taken else ""


def _tried(config: RunConfig | None) -> Iterator[_Check]:
    """What each vendor says to its key."""
    from orchestry.core.config import RunConfig
    from orchestry.engine.keys import try_keys

    found = [*try_keys(config or RunConfig(), os.environ)]
    marks: dict[str, _Mark] = {"ok": "ok", "not tried": "absent"}
    for one in found:
        mark = marks.get(one.verdict, "bad")
        yield _Check(f"{one.variable} tried", mark, f"{one.verdict}: {one.said}")
    if not found:
        yield _Check("keys", "absent", "none is set", "export ANTHROPIC_API_KEY or OPENAI_API_KEY")


def _address(variable: str, url: str) -> _Check:
    try:
        if url.startswith(("http://", "https://")):
            return _Check(variable, "ok", f"{bare_address(url)}{_origin(variable)}")
    except ValueError:
        pass
    return _Check(variable, "bad", "is not an address", "give http(s)://host[:port][/path]")


def _providers(config: RunConfig) -> Iterator[_Check]:
    """The run's provider, the judge's and the agents' own, each as a run would open it."""
    from orchestry.engine.keys import as_played, providers_of
    from orchestry.models.providers import open_provider

    try:
        named = [*providers_of(as_played(config, os.environ))]
    except OrchestryError as error:
        named = []
        yield _Check("provider", "bad", str(error))
    for key, asked in named:
        try:
            found = open_provider(asked, config.seed, os.environ)
            yield _Check(key, "ok", f"{found.name}/{found.model}")
        except OrchestryError as error:
            yield _Check(key, "bad", str(error))


def _weights() -> _Check:
    from orchestry.models.gguf import MODEL, gguf

    try:
        weights = gguf(MODEL)
        if not (path := weights.path).is_file():
            return _Check(
                "weights",
                "absent",
                f"not at {path}",
                "fetched at the first run (98 MB), or set ORCHESTRY_WEIGHTS to a copy",
            )
        weights.fetch()  # it is there, so this only verifies it
    except OrchestryError as error:
        return _Check("weights", "bad", str(error))
    return _Check("weights", "ok", f"{path}, sha256 as pinned")


def _models() -> _Check:
    from orchestry.cli.hardware import learning_gb
    from orchestry.core.machine import memory_gb
    from orchestry.models.gguf import KNOWN

    free = memory_gb()
    if free is None:
        return _Check("models", "absent", "free memory unknown", "orchestry models list")
    names = [one.name for one in KNOWN if one.memory_gb <= free]
    trained = [name for name in names if (gb := learning_gb(name)) and gb <= free]
    found = f"{free:.1f} GB memory free: fits {', '.join(names) or 'none of the listed ones'}"
    found += f"; to be trained {', '.join(trained) or 'none of known sizes'}"
    return _Check("models", "ok" if names else "absent", found, "" if names else "free memory")


def _prices() -> _Check:
    from orchestry.models.prices import PriceTable

    return _Check("prices", "ok", f"genai-prices {PriceTable('anthropic', {}).version}")


async def _sandbox() -> _Check:
    from orchestry.core.types import Call, Limits
    from orchestry.sandbox import open_sandbox

    try:
        async with open_sandbox(Limits()) as sandbox:
            (result,) = await sandbox.run(CODE, "double", [Call(args=(21,))])
            if result.value != 42:
                return _Check("sandbox", "bad", f"a test program gave {result.why or result.value}")
            return _Check("sandbox", "ok", sandbox.level)
    except OrchestryError as error:
        return _Check("sandbox", "bad", str(error))


def _tasks() -> _Check:
    from orchestry.task.registry import find_tasks

    try:
        found = find_tasks((), Path.cwd())
    except OrchestryError as error:
        return _Check("tasks", "bad", str(error))
    return _Check("tasks", "ok", ", ".join(sorted(found)))


def _disks() -> Iterator[_Check]:
    from orchestry.models.cache import default_folder

    for name, folder in (("run directories", Path("runs")), ("user cache", default_folder())):
        place = next(
            path for path in (folder.absolute(), *folder.absolute().parents) if path.exists()
        )
        free = shutil.disk_usage(place).free // 2**20
        if not os.access(place, os.W_OK):
            yield _Check(name, "bad", f"{place} is not writable", "choose another folder or rights")
        elif free < ROOM_MB:
            yield _Check(name, "bad", f"{free} MB free at {place}", f"free {ROOM_MB} MB there")
        else:
            yield _Check(name, "ok", f"{folder}, {free / 1024:.1f} GB free")


def _print(checks: list[_Check]) -> None:
    from rich.table import Table
    from rich.text import Text

    marks = {"ok": "[green]ok[/]", "absent": "[yellow]absent[/]", "bad": "[red]bad[/]"}
    table = Table.grid(padding=(0, 2))
    for check in checks:
        fix = f"\n{check.fix}" if check.fix else ""
        table.add_row(marks[check.mark], check.name, Text(check.found + fix, overflow="fold"))
    console().print(table)
