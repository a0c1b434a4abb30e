"""A sweep's report, from its folder: trials, which settings mattered, and what the best one earns.

The best of many trials is lucky as well as good, so its own value is no estimate. A gain is claimed
only where both settings were played anew, with seeds and problems that no trial had: a single
comparison, whose interval needs no correction for the number of trials.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Any

from orchestry.core.errors import ConfigError
from orchestry.core.files import json_lines, refuse_pipes, write_atomic
from orchestry.core.intervals import student_95
from orchestry.report.headline import signed
from orchestry.report.held_out import shows_gain
from orchestry.report.measures import searched, trajectory_rewards
from orchestry.report.stats import Interval, crossed
from orchestry.report.style import INK, WIDTH, colour, look, save, undrawn
from orchestry.report.text import bullets, counted, dollars, fenced, inline, short, table
from orchestry.store.measurements import last_evaluation
from orchestry.store.run import Run
from orchestry.store.summary import ending

Line = Mapping[str, Any]
SHOWN = 25
"""So many trials stand in the table."""
FEWEST_SEEDS = 5
"""Of each side, for a difference: with four, all differ in one direction by chance once in 8."""


@dataclass(frozen=True, slots=True)
class Found:
    """A sweep as its files say."""

    folder: Path
    sweep: Line
    trials: tuple[Line, ...]
    """In order."""
    importance: Mapping[str, float]
    usd: float
    """Dollars of all trials, and what confirmed the best."""
    same: bool
    """Whether the best setting is the run as it was given."""
    owner: str
    """This folder's name in the study; other folders may share that."""
    confirms: str
    """The folder that confirms the best; '' as long as none does."""
    going: Mapping[str, str]
    """Trials that have not ended, and the folders that play them."""

    @property
    def whole(self) -> list[Line]:
        """Trials with a value, the best first."""
        found = [one for one in self.trials if one["value"] is not None]
        return sorted(found, key=lambda one: (_cut(one), -one["value"], one["number"]))


@dataclass(frozen=True, slots=True)
class Side:
    """The best setting, or the run as it was given, played anew."""

    rewards: tuple[Mapping[str, float], ...]
    """Per seed, each problem's reward: of a search that of its best trajectory, else the mean."""
    calls: int
    usd: float

    @property
    def mean(self) -> float:
        """Over seeds and problems."""
        return fmean(fmean(own.values()) for own in self.rewards)


@dataclass(frozen=True, slots=True)
class Confirmed:
    """The best setting beside the run as it was given, on seeds and problems of their own."""

    trial: int
    split: str
    given: Side
    best: Side
    ahead: Interval
    """The best's mean reward less the given's, paired by seed and problem; the interval is over
    both."""

    @property
    def seeds(self) -> int:
        """Of each side."""
        return len(self.best.rewards)

    @property
    def problems(self) -> int:
        """On which both were evaluated."""
        return len(self.best.rewards[0])


def read_sweep(folder: Path) -> Found:
    """Reads a sweep's folder; raises ConfigError if it holds none, StoreError for a pipe in it."""
    refuse_pipes(folder)
    try:
        known = json.loads((folder / "sweep.json").read_bytes())
        lines = [*json_lines((folder / "trials.jsonl").read_bytes())]
    except FileNotFoundError:
        raise ConfigError(
            f"{folder} holds no sweep: give the folder of `orchestry sweep`"
        ) from None
    trials = tuple(json.loads(line) for _, line in lines)
    known = {"owner": "", "confirms": "", "going": {}, **known}  # of before studies were shared
    names = ("sweep", "importance", "usd", "same", "owner", "confirms", "going")
    own = {name: known[name] for name in names}
    return Found(folder, trials=trials, **own)


def confirmed(found: Found) -> Confirmed | str:
    """The comparison; if there is none, why, as a sentence."""
    asked, place = found.sweep["confirm"], found.folder / "confirm"
    pinned = place / "best" / "trial.json"
    if not asked["seeds"]:
        return "Nothing was confirmed with seeds of its own (confirm.seeds), so no gain is claimed."
    if not pinned.is_file():
        if found.same:
            return "The best setting is the run as it was given: there is no gain to confirm."
        if found.confirms not in ("", found.owner):
            return f"{inline(found.confirms)} confirms the best: its report has the comparison."
        return "The best was not confirmed yet, so no gain is claimed."
    sides = {name: _runs(place / name, asked) for name in ("given", "best")}
    lacking = [f"{name}: {why}" for name, (_, why) in sides.items() if why]
    given, best = (_side(runs) for runs, _ in sides.values())
    if not lacking and len({frozenset(own) for own in (*given.rewards, *best.rewards)}) != 1:
        lacking = ["the evaluations are of different problems"]
    if lacking:
        return f"No gain is claimed, since the confirmation is not whole: {'; '.join(lacking)}."
    rows = [
        [one[problem] - other[problem] for problem in sorted(one)]
        for one, other in zip(best.rewards, given.rewards, strict=True)
    ]
    trial = json.loads(pinned.read_bytes())["trial"]
    return Confirmed(trial, asked["split"], given, best, _ahead(rows))


def _ahead(differences_SP: Sequence[Sequence[float]]) -> Interval:
    """The wider interval at each end: a bootstrap over seeds and problems, and Student's t over
    the seeds' means, since of few seeds a bootstrap alone claims too often."""
    found, means = crossed(differences_SP), [fmean(own) for own in differences_SP]
    if len(means) < 2:
        return found
    half = student_95(len(means) - 1) * stdev(means) / sqrt(len(means))
    return Interval(
        found.mean, min(found.low, found.mean - half), max(found.high, found.mean + half)
    )


def _runs(place: Path, asked: Line) -> tuple[list[tuple[Run, Run]], str]:
    """A side's whole runs with their evaluations, by seed; and what is missing."""
    found, missing = [], []
    for folder in sorted(place.glob("seed-*"), key=lambda path: int(path.name[5:])):
        evaluation = last_evaluation(folder, asked["split"], asked["samples"])
        if evaluation is None:
            missing.append(f"{folder.name} (evaluation missing)")
            continue
        ends = {"run": ending(folder), "evaluation": ending(evaluation)}
        if odd := [f"{name} {end or 'cut off'}" for name, end in ends.items() if end != "done"]:
            missing.append(f"{folder.name} ({', '.join(odd)})")
        else:
            found.append((Run(folder), Run(evaluation)))
    few = asked["seeds"] - len(found) - len(missing)
    more = [f"{counted(few, 'seed')} not begun"] if few > 0 else []
    return found[: asked["seeds"]], ", ".join([*missing, *more])


def _side(runs: Sequence[tuple[Run, Run]]) -> Side:
    rewards = []
    for _, evaluation in runs:
        figure = max if searched(evaluation) else fmean
        by_problem = trajectory_rewards(evaluation.episodes)
        rewards.append({problem: figure(own) for problem, own in by_problem.items()})
    summaries = [run.summary for pair in runs for run in pair]
    calls, usd = (sum(one.calls for one in summaries), sum(one.cost_usd for one in summaries))
    return Side(tuple(rewards), calls, usd)


def sentences(found: Found) -> list[str]:
    """What came out, in plain text."""
    states = [one["state"] for one in found.trials]
    counts = ", ".join(
        f"{states.count(state)} {state}"
        for state in ("complete", "pruned", "failed")
        if state in states
    )
    said = [f"{counted(len(states), 'trial')} ({counts or 'none yet'}), {dollars(found.usd)}."]
    said += [
        f"Trial {number} has not ended: {inline(owner)} plays it, or was stopped there."
        for number, owner in found.going.items()
        if owner != found.owner
    ]
    if not found.whole:
        return said
    best = found.whole[0]
    if games := games_of(best):
        said.append(
            f"Trials differ in {', '.join(games)}, so they play different games: their values say "
            "what each game pays, not which settings are better."
        )
    said.append(
        f"Best of {counted(len(found.whole), 'whole trial')}: {short(best['value'])}, trial "
        f"{best['number']} ({_settings(best['settings'])}). The best of several is lucky too, so "
        "this is no estimate of what it earns."
    )
    return [*said, _confirmation(found)]


def games_of(trial: Line) -> list[str]:
    """The keys that were tried and decide which game is played."""
    return sorted(key for key in trial["settings"] if key.startswith("options."))


def _confirmation(found: Found) -> str:
    if isinstance(one := confirmed(found), str):
        return one
    shown = shows_gain(one.ahead, one.problems)
    if games_of(found.whole[0]):
        shown = "of two games, so it shows no gain"
    if one.seeds < FEWEST_SEEDS:
        shown = f"fewer than {FEWEST_SEEDS} seeds show no difference"
    return (
        f"With {counted(one.seeds, 'seed')} that no trial had, on {one.split} problems: the "
        f"settings of trial {one.trial} earn {one.best.mean:.3f} ({_cost(one.best)}), the run as "
        f"it was given {one.given.mean:.3f} ({_cost(one.given)}); paired by seed and over "
        f"{counted(one.problems, 'problem')} {signed(one.ahead)}: {shown}."
    )


def _cost(side: Side) -> str:
    """What runs and evaluations of a side took."""
    return f"{counted(side.calls, 'call')}, {dollars(side.usd)}"


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
    yield bullets(inline(text, longest=2_000) for text in sentences(found))
    yield "## Trials"
    keys = list(found.sweep["keys"])
    rows = [_row(one, keys) for one in found.whole[:SHOWN]]
    yield table(["trial", "value", *map(inline, keys), "runs", "USD"], rows)
    if len(found.whole) > SHOWN:
        yield f"The first {SHOWN} of {len(found.whole)} by value; trials.jsonl has all of them."
    if any(_cut(one) for one in found.whole[:SHOWN]):
        yield (
            "\\* A run or its evaluation stopped at its part of the cap, so the value is of fewer "
            "episodes or problems than those of the others."
        )
    if away := [one for one in found.trials if one.get("owner", "") != found.owner]:
        listed = ", ".join(f"{one['number']} by {inline(one['owner'])}" for one in away)
        yield f"Played in other folders, which have their runs: {listed}."
    if pruned := [one for one in found.trials if one["value"] is None]:
        yield f"Without a value: {', '.join(_without(one) for one in pruned)}."
    if found.importance:
        yield "## What mattered"
        yield (
            "How much a key matters for reaching the best tenth of trials (PED-ANOVA, Watanabe et "
            "al., arXiv 2304.10255), normalised to a sum of 1."
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


def _row(one: Line, keys: Sequence[str]) -> list[str]:
    values = [_value(one["settings"].get(key)) for key in keys]
    usd = sum(run["usd"] for run in one["runs"])
    value = short(one["value"]) + (r" \*" if _cut(one) else "")
    return [str(one["number"]), value, *values, str(len(one["runs"])), f"{usd:.4f}"]


def _cut(one: Line) -> bool:
    """Whether a run of the trial, or its evaluation, stopped at its budget."""
    return any(run["stopped"] for run in one["runs"])


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
