"""What stands beside the kernel: a table of names, each loaded when it is first asked for.

No module of the kernel imports `orchestry.ext`. Where an extension adds to the kernel, the table
says under which name and where it is found, as "module:attribute"; the kernel asks `find`. Packages
of others add theirs by an entry point of the group `orchestry.extensions` that is an Extension.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple

from orchestry.core.errors import ConfigError, reason

GROUP = "orchestry.extensions"
Slot = Literal["datasets", "exports", "levels", "regimes", "samplers"]
"""Where an extension can add something; a field of Extension."""


class Verb(NamedTuple):
    """A command of the command line."""

    panel: str
    """Of `orchestry --help` in which it is listed."""
    help: str
    place: str
    """Of its typer app, or of the function of a command within a group."""


@dataclass(frozen=True, slots=True)
class Extension:
    """What one extension adds: by name the place of each object, as "module:attribute"."""

    name: str
    commands: Mapping[str, Verb] = field(default_factory=dict)
    """By words as they are typed: `judge`; `tasks generate` in the group `tasks`."""
    datasets: Mapping[str, str] = field(default_factory=dict)
    """Data sets of functions; each is a task.functions.FunctionSet."""
    exports: Mapping[str, str] = field(default_factory=dict)
    """What `orchestry export --as` writes by (run, folder or None, ...): a form of chats to
    engine.export.Chats, an eval log to its path."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """Ways to confine code beside the kernel's own; each starts a sandbox.pool.Server."""
    regimes: Mapping[str, str] = field(default_factory=dict)
    """Kinds of runs that are more than one plan; each is an engine.regime.Regime."""
    samplers: Mapping[str, str] = field(default_factory=dict)
    """Who draws for backend local in place of its own sampler: (base, adapters, address, ...) to a
    backends.local.sampler.Draws."""


_PLAY, _MEASURE, _PREPARE = "Play and learn", "Measure", "Look and prepare"

BUILT_IN = (
    Extension(
        "datasets",
        datasets={
            "humaneval": "orchestry.ext.datasets.humaneval:HUMANEVAL",
            "coophumaneval": "orchestry.ext.datasets.humaneval:COOPHUMANEVAL",
            "leetcode": "orchestry.ext.datasets.leetcode:LEETCODE",
        },
    ),
    Extension(
        "sweep",
        commands={
            "sweep": Verb(
                _PLAY,
                "Search settings: trials as runs, pruned by their curves.",
                "orchestry.ext.sweep.cli:app",
            )
        },
    ),
    Extension(
        "distil",
        commands={
            "distil": Verb(
                _PLAY,
                "Fine-tune a local team on answers of runs, gold, or a teacher's play.",
                "orchestry.ext.distil.cli:app",
            )
        },
        exports=dict.fromkeys(("openai", "hf"), "orchestry.ext.distil.chats:export_chats"),
    ),
    Extension("recipes", regimes={"recipe": "orchestry.ext.recipes.recipes:RECIPE"}),
    Extension(
        "remote",
        commands={
            "remote": Verb(
                _PLAY,
                "Run on a machine of yours, such as a rented GPU, over ssh and rsync.",
                "orchestry.ext.remote.cli:app",
            )
        },
    ),
    Extension(
        "judge_check",
        commands={
            "judge": Verb(
                _MEASURE,
                "Measure a judge before trusting it.",
                "orchestry.ext.judge_check.cli:app",
            )
        },
    ),
    Extension(
        "writing",
        commands={
            "tasks generate": Verb(
                _PREPARE, "Let a model write problems.", "orchestry.ext.writing.cli:generate"
            )
        },
    ),
    Extension("wasi", levels={"wasi": "orchestry.ext.wasi.wasi:WasiWorker"}),
    Extension("vllm", samplers={"vllm": "orchestry.ext.vllm.vllm:VllmSampler"}),
    Extension("bridges", exports={"inspect": "orchestry.ext.bridges.inspect_log:to_inspect"}),
)


def find(slot: Slot, name: str) -> Any:
    """The object of that name. Raises ConfigError for a name that no extension has."""
    for extension in _all():
        if place := getattr(extension, slot).get(name):
            return load(place)
    raise ConfigError(f"no extension has {slot} '{name}', only {', '.join(names(slot))}")


def load(place: str) -> Any:
    """What lies at "module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def verbs() -> dict[str, Verb]:
    """The commands that extensions add, by their words."""
    return {words: verb for one in _all() for words, verb in one.commands.items()}


def names(slot: Slot) -> tuple[str, ...]:
    """All names in a slot; loads none of the built-in extensions."""
    return tuple(dict.fromkeys(name for one in _all() for name in getattr(one, slot)))


def _all() -> Iterator[Extension]:
    yield from BUILT_IN
    yield from _others()


@cache
def _others() -> tuple[Extension, ...]:
    """Those of other packages that are installed; one that can't be loaded is left out, aloud."""
    found = list[Extension]()
    for point in entry_points(group=GROUP):
        try:
            found.append(point.load())
        except Exception as error:  # whatever their module raises
            warnings.warn(
                f"the extension '{point.value}' can't be loaded ({reason(error)}): mend it, or "
                "uninstall its package",
                stacklevel=2,
            )
    return tuple(found)
