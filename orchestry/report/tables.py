"""The tables of RESULTS.md: runs side by side, curves, measurements, tags."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from orchestry.report.arms import Arm
from orchestry.report.curves import Curve, axis, curve, dev_rewards, part, part_names, reward
from orchestry.report.experiment import Experiment
from orchestry.report.headline import signed
from orchestry.report.held import Held, ahead, baselines, evaluations, team_on, untrained
from orchestry.report.kinds import (
    common,
    first_and_last,
    has_schemes,
    shares,
    tag_names,
    tag_shares,
)
from orchestry.report.markdown import inline, table
from orchestry.report.measures import Measures


def side_by_side(labels: Sequence[str], columns: Sequence[Mapping[str, str]]) -> str:
    """A column a run, a row a fact, in the order of their first run."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = ([inline(name), *(inline(one.get(name, "-")) for one in columns)] for name in names)
    return table(["", *map(inline, labels)], rows, figures=False)


def curves(arms: Sequence[Arm], smooth: int) -> str:
    """The reward and its parts at the first, the best and the last point; dev rewards likewise."""
    unit = "updates taken" if axis(arms[0].runs[0]) == "updates" else "episode"
    header = ["", *(f"{which} (at {unit})" for which in ("first", "best", "last")), "points"]
    return table(header, [row for arm in arms for row in _curves(arm, smooth, len(arms) > 1)])


def _curves(arm: Arm, smooth: int, several: bool) -> Iterator[list[str]]:
    who = f"{inline(arm.label)}: " if several else ""
    if found := curve(arm.runs, reward, smooth):
        yield [f"{who}**reward**", *_points(found)]
    for name in part_names(arm.runs):
        if found := curve(arm.runs, part(name), smooth):
            yield [f"{who}{inline(name)}", *_points(found)]
    for experiment in arm.experiments:
        dev = dev_rewards(experiment.run)
        if not dev:
            continue
        name = f"{inline(experiment.label)}: dev problems" if several else "dev problems"
        places = min(dev), max(dev, key=lambda update: (dev[update], -update)), max(dev)
        yield [name, *(f"{dev[at]:.3f} ({at})" for at in places), f"{len(dev)}"]


def _points(found: Curve) -> list[str]:
    last = len(found.x) - 1
    top = max(range(len(found.x)), key=lambda at: (found.mean[at], -at))
    said = [f"{found.mean[at]:.3f} ({found.x[at]})" for at in (0, top, last)]
    return [*said, f"{last + 1}"]


MEASURED = (
    *("problems", "trajectories", "reward of one, 95 %", "best of a problem's, 95 %"),
    *("calls a problem", "USD"),
)


def held_out(experiments: Sequence[Experiment]) -> str | None:
    """A row an evaluation, and what its team earns more than as the run began."""
    rows = [row for one in experiments for row in _held_out(one, len(experiments) > 1)]
    header = ["", "split", *MEASURED, "more than as the run began, paired", "checkpoint"]
    return table(header, rows) if rows else None


def _held_out(experiment: Experiment, several: bool) -> Iterator[list[str]]:
    found = evaluations(experiment)
    for held in found:
        yield [
            _who(experiment, held, several),
            held.split,
            *_figures(held.measures),
            _ahead(held, untrained(held, found)),
            inline(held.checkpoint) or "-",
        ]


def beside(experiments: Sequence[Experiment]) -> str | None:
    """A row a baseline, and what the run's team earns more on the same problems."""
    rows = [row for one in experiments for row in _beside(one, len(experiments) > 1)]
    header = ["", "split", *MEASURED, "the team's lead, paired", "tokens/s"]
    return table(header, rows) if rows else None


def _beside(experiment: Experiment, several: bool) -> Iterator[list[str]]:
    for held in baselines(experiment):
        speed, team = held.measures.tokens_per_s, team_on(experiment, held)
        yield [
            _who(experiment, held, several),
            held.split,
            *_figures(held.measures),
            _ahead(team, held),
            "-" if speed is None else f"{speed:,.0f}",
        ]


def at_k(experiments: Sequence[Experiment]) -> str | None:
    """pass@k and the reward of the best of k, of every measurement that has them."""
    found = [(one, held) for one in experiments for held in (*evaluations(one), *baselines(one))]
    passes = sorted({k for _, held in found for k in held.measures.pass_at})
    bests = sorted({k for _, held in found for k in held.measures.best_at if k > 1})
    rows = [
        [
            _who(one, held, len(experiments) > 1),
            *(str(held.measures.pass_at.get(k, "-")) for k in passes),
            *(str(held.measures.best_at.get(k, "-")) for k in bests),
        ]
        for one, held in found
    ]
    header = ["", *(f"pass@{k}, 95 %" for k in passes), *(f"best of {k}, 95 %" for k in bests)]
    return table(header, rows) if passes or bests else None


def _who(experiment: Experiment, held: Held, several: bool) -> str:
    return inline(f"{experiment.label + ': ' if several else ''}{held.words}")


def _figures(measures: Measures) -> list[str]:
    return [
        f"{measures.problems}",
        f"{measures.trajectories}",
        str(measures.reward),
        str(measures.best),
        f"{measures.calls_a_problem:.1f}",
        f"{measures.usd:.4f}",
    ]


def _ahead(team: Held | None, other: Held | None) -> str:
    difference = ahead(team, other) if team and other else None
    return signed(difference) if difference else "-"


def kinds(arm: Arm) -> str:
    """Kinds of trajectory, then tags: in the first quarter of the episodes, the last, and all."""
    schemes = has_schemes(arm.runs)
    named = common(arm.runs)
    quarters = [first_and_last(run.episodes) for run in arm.runs]
    spans = [
        [record for first, _ in quarters for record in first],
        [record for _, last in quarters for record in last],
        [record for run in arm.runs for record in run.episodes],
    ]
    by_kind = [shares(span, named, schemes=schemes) for span in spans]
    rows = [[inline(kind), *(str(found[kind]) for found in by_kind)] for kind in named]
    if schemes or any(" + " in kind for kind in named):
        tags = [tag for tag in tag_names(arm.runs) if not tag.startswith("scheme_")]
        by_tag = [tag_shares(span, tags) for span in spans]
        rows += [[f"tag {inline(tag)}", *(str(found[tag]) for found in by_tag)] for tag in tags]
    return table(["", "first quarter", "last quarter", "all episodes"], rows)
