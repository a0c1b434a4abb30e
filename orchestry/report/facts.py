"""A run at a glance: when, on what, how long, for how much, and what it came to. The table of
RESULTS.md's summary, and summary.txt.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from orchestry.report import neural
from orchestry.report.convergence import converged
from orchestry.report.ground import began, hardware
from orchestry.report.headline import summary
from orchestry.report.held_out import held_evaluations, untrained
from orchestry.report.lessons import lessons
from orchestry.report.outcomes import (
    Figure,
    figures,
    novel,
    over_problems,
    over_time,
    rates,
    schemes_said,
)
from orchestry.report.runs import Experiment, Salvaged
from orchestry.report.text import counted, dollars, duration, plain


def facts(experiment: Experiment) -> dict[str, str]:
    """By name, in order."""
    run = experiment.run
    found = {
        "date, UTC": began(run) or "-",
        "hardware": hardware(run) or "not kept",
        **(_of_games(run) if run.neural else _of_episodes(run)),
        "time": duration(run.took),
        "dollars": dollars(run.summary.cost_usd),
        **(_returns(run) if run.neural else _outcomes(experiment)),
    }
    trend = converged(run)
    return {**found, **({"at the end of its curve": str(trend)} if trend else {})}


def _of_episodes(run: Salvaged) -> dict[str, str]:
    updates, asked = run.summary.updates, run.config.get("episodes")
    played = {"episodes": f"{len(run.episodes):,} of {asked}"} if asked else {}  # distilled: none
    return {
        **played,
        **({"updates": f"{updates:,}"} if updates else {}),
    }


def _of_games(run: Salvaged) -> dict[str, str]:
    last = run.batches[-1] if run.batches else {}
    return {
        "steps": neural.played_steps(run),
        "games": f"{int(last.get(neural.GAMES, 0)):,}",
    }


def _returns(run: Salvaged) -> dict[str, str]:
    found = neural.curve([run], neural.RETURN)
    if found is None:
        return {}
    return {"return, first and last": f"{found.mean[0]:.4g}, then {found.mean[-1]:.4g}"}


def _outcomes(experiment: Experiment) -> dict[str, str]:
    """Reward and rates in the first quarter of the episodes and in the last, and on the problems
    that were held out."""
    run = experiment.run
    shown = _shown(run)
    found = {_when(one): said for one in shown if (said := _early_and_late(run, one))}
    if seen := schemes_said(run):
        found["schemes seen"] = seen
    if others := novel(run):
        found["new ways of working together"] = ", ".join(
            f"{name} {portion.count}" for name, portion in others.items()
        )
    return found | dict(_held_out(experiment))


def _shown(run: Salvaged) -> list[Figure]:
    return [figures([run])[0], *rates([run])]


def _when(figure: Figure) -> str:
    return f"{figure.name}, first and last quarter"


def _early_and_late(run: Salvaged, figure: Figure) -> str:
    change = over_time(run, figure)
    if change is None:
        return ""
    return f"{figure.words(change.first)}, then {figure.words(change.last)}"


def _held_out(experiment: Experiment) -> Iterator[tuple[str, str]]:
    """The last team on each kind of evaluation, after the untrained one if it played too."""
    found = held_evaluations(experiment)
    lasts = {(held.split, held.samples): held for held in found}  # sorted by update
    for held in lasts.values():
        before = untrained(held, found)
        teams = [one.run for one in (before, held) if one]
        many = f", {counted(held.samples, 'sample')} each" if held.samples else ""
        for figure in _shown(held.run):
            said = ", then ".join(figure.words(over_problems(run, figure).mean) for run in teams)
            yield f"{figure.name} on {held.split} problems{many}", said


def summary_text(experiments: Sequence[Experiment], command: str) -> str:
    """summary.txt: the facts, the headlines and the lessons of each run, as plain text."""
    said = summary(experiments)
    blocks = [f"Written by: {plain(' '.join(command.split()))}"]
    for one in experiments:
        rows = {"run": str(one.run.folder), **facts(one)}
        width = max(map(len, rows)) + 2
        lines = [f"{name + ':':<{width}} {value}" for name, value in rows.items()]
        blocks.append("\n".join([one.label, "=" * len(one.label), *lines]))
    blocks += [_block(name, sentences) for name, sentences in said]
    learned = ((f"{one.label}: lessons", lessons(one)) for one in experiments)
    blocks += [_block(name, sentences) for name, sentences in learned]
    return plain("\n\n".join(blocks)) + "\n"


def _block(name: str, sentences: Sequence[str]) -> str:
    return "\n".join([name, *(f"- {sentence}" for sentence in sentences)])
