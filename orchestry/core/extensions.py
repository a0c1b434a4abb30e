"""What stands beside the kernel: a table of names, each loaded when it is first asked for.

No module of the kernel imports `orchestry.ext`. Where an extension adds to the kernel, the table
says under which name and where it is found, as "module:attribute"; the kernel asks `find`. Packages
of others add theirs by an entry point of the group `orchestry.extensions` that is an Extension.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import import_module
from importlib.metadata import entry_points
from typing import Any, Literal

from orchestry.core.errors import ConfigError

GROUP = "orchestry.extensions"
Slot = Literal["datasets", "exports", "levels", "samplers"]
"""Where an extension can add something; a field of Extension."""


@dataclass(frozen=True, slots=True)
class Extension:
    """What one extension adds: by name the place of each object, as "module:attribute"."""

    name: str
    datasets: Mapping[str, str] = field(default_factory=dict)
    """Data sets of functions; each is a task.functions.Bank."""
    exports: Mapping[str, str] = field(default_factory=dict)
    """What `orchestry export --as` writes: (run, folder or None) to the path of what it wrote."""
    levels: Mapping[str, str] = field(default_factory=dict)
    """Ways to confine code beside the kernel's own; each starts a sandbox.pool.Server."""
    samplers: Mapping[str, str] = field(default_factory=dict)
    """Who draws for backend local in place of its own sampler: (base, adapters, address, ...) to a
    backends.local.sampler.Draws."""


BUILT_IN = (
    Extension(
        "datasets",
        datasets={
            "humaneval": "orchestry.ext.datasets.humaneval:HUMANEVAL",
            "coophumaneval": "orchestry.ext.datasets.humaneval:COOPHUMANEVAL",
            "leetcode": "orchestry.ext.datasets.leetcode:LEETCODE",
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
            module, _, attribute = place.partition(":")
            return getattr(import_module(module), attribute)
    raise ConfigError(f"no extension has {slot} '{name}', only {', '.join(names(slot))}")


def names(slot: Slot) -> tuple[str, ...]:
    """All names in a slot; loads none of the built-in extensions."""
    return tuple(dict.fromkeys(name for one in _all() for name in getattr(one, slot)))


def _all() -> Iterator[Extension]:
    yield from BUILT_IN
    yield from _others()


@cache
def _others() -> tuple[Extension, ...]:
    """Those of other packages that are installed."""
    return tuple(point.load() for point in entry_points(group=GROUP))
