"""Names for runs: the folder, and what tells them apart, and no more."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from orchestry.core.config import RunConfig
from orchestry.core.resolve import Mark, leaves, marks

Config = Mapping[str, Any]
_PLAIN = ("task", "backend", "provider.model", "provider.name", "search.strategy", "baseline")
"""Their values say enough; of all other keys the name stands beside the value."""
_LAST = ("seed", "episodes")
"""Named where nothing else tells runs apart."""
_KNOWN = ("", "learn", "options", "sampling", "search")
"""Sections whose keys say enough without the section's name."""


def labels(configs: Sequence[Config], folders: Sequence[str]) -> list[str]:
    """A label a run, unique: its folder, and the settings in which it differs from the others.

    >>> one = {"task": "tldr", "seed": 0}
    >>> labels([one], ["a"]), labels([one, {**one, "seed": 1}], ["a", "b"])
    (['a'], ['a (seed 0)', 'b (seed 1)'])
    """
    told = zip(folders, settings(configs), strict=True)
    return unique([f"{folder} ({said})" if said else folder for folder, said in told])


def settings(configs: Sequence[Config]) -> list[str]:
    """The settings in which each differs from the others; '' where none differs."""
    flat = [telling(config) for config in configs]
    keys = _fewest(flat)
    return [", ".join(_said(key, one.get(key)) for key in keys) for one in flat]


def unique(found: Sequence[str]) -> list[str]:
    """Those that come twice with their place, from 1."""
    return [
        f"{label} #{number}" if found.count(label) > 1 else label
        for number, label in enumerate(found, start=1)
    ]


def telling(config: Config) -> dict[str, Any]:
    """The settings, by dotted key, that a result may depend on."""
    return {
        key: value for key, value in leaves(config) if Mark.OPERATIONAL not in marks(RunConfig, key)
    }


def _fewest(flat: Sequence[Config]) -> list[str]:
    """The fewest differing keys that tell the runs apart, as far as any do."""
    chosen = list[str]()
    known = 1
    for key in differing(flat):
        told = len({tuple(repr(one.get(k)) for k in (*chosen, key)) for one in flat})
        if told > known:
            chosen, known = [*chosen, key], told
    return chosen


def differing(flat: Sequence[Config]) -> list[str]:
    """Keys whose values differ between flat configs: the telling ones first."""
    keys = dict.fromkeys(key for one in flat for key in one)
    found = [key for key in keys if len({repr(one.get(key)) for one in flat}) > 1]
    return sorted(found, key=lambda key: (key not in _PLAIN, key in _LAST, key == "episodes"))


def _said(key: str, value: Any) -> str:
    text = str(value).rpartition("/")[2][:24]  # of a path its name
    if key in _PLAIN:
        return text
    section, _, name = key.rpartition(".")
    whole = name if section in _KNOWN else key
    return f"{whole.replace('_', ' ').replace('.', ' ')} {text}"
