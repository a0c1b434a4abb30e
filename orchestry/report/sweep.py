"""A sweep's report, from its folder: trials, which settings mattered, and what the best one earns.

The best of many trials is lucky as well as good, so its own value is no estimate. A gain is claimed
only where both settings were played anew, with seeds and problems that no trial had: a single
comparison, whose interval needs no correction for the number of trials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import Any

from orchestry.core.errors import ConfigError
from orchestry.core.files import write_atomic
from orchestry.report.headline import signed
from orchestry.report.held_out import shows_gain
from orchestry.report.measures import trajectory_rewards
from orchestry.report.stats import Interval, difference
from orchestry.report.style import INK, WIDTH, colour, look, save, undrawn
from orchestry.report.text import bullets, counted, dollars, fenced, inline, short, table
from orchestry.store.run import Run

Line = Mapping[str, Any]
SHOWN = 25
"""So many trials stand in the table."""


@dataclass(frozen=True, slots=True)
class Found:
    """A sweep as its files say."""

    folder: Path
    sweep: Line
    trials: tuple[Line, ...]
    """In order."""
    importance: Mapping[str, float]

    @property
    def whole(self) -> list[Line]:
        """Trials with a value, the best first."""
        found = [one for one in self.trials if one["value"] is not None]
        return sorted(found, key=lambda one: (-one["value"], one["number"]))

    @property
    def usd(self) -> float:
        """Dollars of all trials."""
        return float(sum(run["usd"] for one in self.trials for run in one["runs"]))


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The best setting beside the run as it was given, on seeds and problems of their own."""

    split: str
    seeds: int
    given: float
    best: float
    ahead: Interval
    """The best's mean reward less the given's, paired by problem."""
    problems: int


def read_sweep(folder: Path) -> Found:
    """Reads a sweep's folder; raises ConfigError if it holds none."""
    try:
        known = json.loads((folder / "sweep.json").read_bytes())
        lines = (folder / "trials.jsonl").read_text(encoding="utf-8").splitlines()
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} holds no sweep: give the folder of `orchestry sweep`"
        ) from None
    trials = tuple(json.loads(line) for line in lines)
    return Found(folder, known["sweep"], trials, known["importance"])


def confirmed(found: Found) -> Confirmed | None:
    """None unless every seed of both was evaluated on the same problems."""
    asked = found.sweep["confirm"]
    sides = [_confirmed(found.folder / "confirm" / name, asked) for name in ("given", "best")]
    if not asked["seeds"] or not all(sides):
        return None
    given, best = sides
    ahead = difference(best, given)
    if ahead is None:
        return None
    both = given.keys() & best.keys()
    means = [fmean(side[problem] for problem in both) for side in (given, best)]
    return Confirmed(asked["split"], asked["seeds"], means[0], means[1], ahead, len(both))


def _confirmed(place: Path, asked: Line) -> dict[str, float]:
    """Per problem the mean reward over seeds; empty unless all seeds were evaluated."""
    runs = [
        Run(summary.parent)
        for summary in place.glob(f"seed-*/evaluations/{asked['split']}*/summary.json")
    ]
    if len(runs) != asked["seeds"]:
        return {}
    found = dict[str, list[float]]()
    for run in runs:
        for problem, rewards in trajectory_rewards(run.episodes).items():
            found.setdefault(problem, []).append(fmean(rewards))
    return {problem: fmean(rewards) for problem, rewards in found.items()}


def sentences(found: Found) -> list[str]:
    """What came out, in plain text."""
    states = [one["state"] for one in found.trials]
    counts = ", ".join(
        f"{states.count(state)} {state}"
        for state in ("complete", "pruned", "failed")
        if state in states
    )
    said = [f"{counted(len(states), 'trial')} ({counts or 'none yet'}), {dollars(found.usd)}."]
    if not found.whole:
        return said
    best = found.whole[0]
    said.append(
        f"Best of {counted(len(found.whole), 'whole trial')}: {short(best['value'])}, trial "
        f"{best['number']} ({_settings(best['settings'])}). The best of several is lucky too, so "
        "this is no estimate of what it earns."
    )
    return [*said, _confirmation(found)]


def _confirmation(found: Found) -> str:
    if (one := confirmed(found)) is None:
        return "Nothing was confirmed with seeds of its own (confirm.seeds), so no gain is claimed."
    return (
        f"With {counted(one.seeds, 'seed')} that no trial had, on {one.split} problems: the best "
        f"setting earns {one.best:.3f}, the run as it was given {one.given:.3f}; paired over "
        f"{counted(one.problems, 'problem')} {signed(one.ahead)}: "
        f"{shows_gain(one.ahead, one.problems)}."
    )


def write_report(found: Found, command: str) -> list[Path]:
    """Writes RESULTS.md and figures into the sweep's folder `report`; returns the paths."""
    folder = found.folder / "report"
    folder.mkdir(exist_ok=True)
    lacking = undrawn()
    drawn = [] if lacking or not found.whole else _drawn(found, folder)
    pictures = [path.name for path in drawn if path.suffix == ".svg"]
    write_atomic(
        folder / "RESULTS.md", "\n\n".join(_parts(found, command, pictures, lacking)).encode()
    )
    return [folder / "RESULTS.md", *drawn]


def _parts(found: Found, command: str, pictures: Sequence[str], lacking: str) -> Iterator[str]:
    """The document, part by part."""
    yield f"# Sweep {inline(found.folder.name)}"
    yield f"Made by `{command}`."
    yield bullets(map(inline_long, sentences(found)))
    yield "## Trials"
    keys = list(found.sweep["keys"])
    rows = [_row(one, keys) for one in found.whole[:SHOWN]]
    yield table(["trial", "value", *map(inline, keys), "runs", "USD"], rows)
    if pruned := [one for one in found.trials if one["value"] is None]:
        yield f"Without a value: {', '.join(_without(one) for one in pruned)}."
    if found.importance:
        yield "## What mattered"
        yield (
            "Share of the variance of values that a key explains, over whole trials (PED-ANOVA, "
            "Watanabe et al., arXiv 2304.10255)."
        )
        yield table(
            ["key", "share"], [[inline(k), f"{v:.0%}"] for k, v in found.importance.items()]
        )
    yield from (f"![{name}]({name})" for name in pictures)
    if lacking:
        yield lacking
    if (best := found.folder / "best.yaml").is_file():
        yield "## The best setting, for `orchestry run --config`"
        yield fenced(best.read_text(encoding="utf-8"), language="yaml")


def inline_long(text: str) -> str:
    """A whole sentence, safe in Markdown."""
    return inline(text, longest=2_000)


def _row(one: Line, keys: Sequence[str]) -> list[str]:
    values = [_value(one["settings"].get(key)) for key in keys]
    usd = sum(run["usd"] for run in one["runs"])
    return [str(one["number"]), short(one["value"]), *values, str(len(one["runs"])), f"{usd:.4f}"]


def _without(one: Line) -> str:
    why = f": {inline(one['why'])}" if one["why"] else ""
    return f"{one['number']} ({one['state']}{why})"


def _settings(settings: Line) -> str:
    return ", ".join(f"{key}={_value(value)}" for key, value in settings.items())


def _value(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else inline(str(value))


def _drawn(found: Found, folder: Path) -> list[Path]:
    """Values over trials, and parallel coordinates of the settings."""
    with look():
        return [*_history(found, folder), *_parallel(found, folder)]


def _history(found: Found, folder: Path) -> list[Path]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(WIDTH, 2.8), layout="constrained")
    axes = figure.subplots()
    order = sorted(found.whole, key=lambda one: one["number"])
    numbers, values = [one["number"] for one in order], [one["value"] for one in order]
    best = [max(values[: place + 1]) for place in range(len(values))]
    axes.plot(numbers, values, "o", color=colour(5), label="a trial")
    axes.step(numbers, best, where="post", color=colour(0), label="best so far")
    axes.set_xlabel("trial")
    axes.set_ylabel("value")
    axes.legend()
    return save(figure, folder, "values")


def _parallel(found: Found, folder: Path) -> list[Path]:
    from matplotlib import colormaps
    from matplotlib.figure import Figure

    keys, order = list(found.sweep["keys"]), found.whole[::-1]
    figure = Figure(figsize=(WIDTH, 3.4), layout="constrained")
    axes = figure.subplots()
    low, high = order[0]["value"], order[-1]["value"]
    for one in order:
        at = [_place(found.sweep["keys"][key], one["settings"][key]) for key in keys]
        share = (one["value"] - low) / (high - low or 1)
        at.append(share)
        axes.plot(range(len(at)), at, color=colormaps["viridis"](share), linewidth=1.2)
    axes.set_xticks(range(len(keys) + 1), [*keys, "value"])
    axes.set_yticks([])
    for place, key in enumerate(keys):
        for y, text in zip((0, 1), _ends(found.sweep["keys"][key]), strict=True):
            axes.annotate(text, (place, y), color=INK, fontsize=8, ha="center", va="center")
    for y, value in ((0, low), (1, high)):
        axes.annotate(short(value), (len(keys), y), color=INK, fontsize=8, ha="center", va="center")
    return save(figure, folder, "parallel")


def _place(what: Line, value: Any) -> float:
    """Where a value lies between the ends of its key, in [0, 1]."""
    from math import log

    if "choices" in what:
        return float(what["choices"].index(value) / (len(what["choices"]) - 1))
    scale = log if what["log"] else float
    low, high = scale(what["low"]), scale(what["high"])
    return float((scale(value) - low) / (high - low))


def _ends(what: Line) -> tuple[str, str]:
    if "choices" in what:
        return str(what["choices"][0]), str(what["choices"][-1])
    return f"{what['low']:g}", f"{what['high']:g}"
