"""What stands beside the kernel: a table of names, each loaded when it is first asked for.

No module of the kernel imports `orchestry.ext`. Where an extension adds to the kernel, the table
says under which name and where it is found, as "module:attribute"; the kernel asks `find`. Another
package adds a command by an entry point of the group `orchestry.commands`: its name, and the place
of its typer app.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal, NamedTuple

from orchestry.core.errors import ConfigError, unknown

GROUP = "orchestry.commands"
THEIRS = "Of other packages"
"""The panel of their commands."""
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
                _PREPARE,
                "Have a model write problems with gold and tests, and keep the good ones.",
                "orchestry.ext.writing.cli:generate",
            )
        },
    ),
    Extension("wasi", levels={"wasi": "orchestry.ext.wasi.wasi:WasiWorker"}),
    Extension("vllm", samplers={"vllm": "orchestry.ext.vllm.vllm:VllmSampler"}),
    Extension("bridges", exports={"inspect": "orchestry.ext.bridges.inspect_log:to_inspect"}),
)


def find(slot: Slot, name: str) -> Any:
    """The object of that name. Raises ConfigError for a name that no extension has."""
    places = {one: place for each in BUILT_IN for one, place in getattr(each, slot).items()}
    if name not in places:
        raise ConfigError(unknown(slot.removesuffix("s"), name, [*places]))
    return load(places[name])


def load(place: str) -> Any:
    """What lies at "module:attribute"."""
    module, _, attribute = place.partition(":")
    return getattr(import_module(module), attribute)


def verbs(group: str = "") -> dict[str, Verb]:
    """The commands that extensions add to the command line, or to a group of it, by their names."""
    split = {
        words.rpartition(" ")[::2]: verb for one in BUILT_IN for words, verb in one.commands.items()
    }
    return {name: verb for (within, name), verb in split.items() if within == group}


def theirs() -> dict[str, Verb]:
    """The commands of other packages that are installed; none of them is loaded."""
    return {
        point.name: Verb(
            THEIRS,
            f"Of the package {point.dist.name if point.dist else point.module}.",
            point.value,
        )
        for point in entry_points(group=GROUP)
    }
