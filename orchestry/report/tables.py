"""The tables of a report: rewards, comparisons, costs, and what went wrong."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean
from typing import Self

from orchestry.core.types import TASK_ERROR
from orchestry.report import neural
from orchestry.report.curves import (
    QUARTER,
    Curve,
    Portion,
    axis,
    common_kinds,
    curve,
    dev_rewards,
    episode_reward,
    first_and_last,
    has_schemes,
    part,
    part_names,
    reward_name,
    shares,
    tag_names,
    tag_shares,
)
from orchestry.report.headline import signed
from orchestry.report.held_out import (
    Held,
    ahead,
    baselines,
    held_evaluations,
    lead,
    team_on,
    untrained,
)
from orchestry.report.measures import Measures
from orchestry.report.outcomes import Figure, over_problems, rates, schemes_said
from orchestry.report.runs import Arm, Experiment, Salvaged
from orchestry.report.text import dollars, duration, inline, table
from orchestry.store.collapse import FAINTEST
from orchestry.store.journal import (
    Answered,
    Event,
    Learned,
    Lost,
    Opened,
    Released,
    RolledBack,
    Scored,
    Stopped,
)
from orchestry.store.records import EpisodeRecord
from orchestry.store.run import Run
from orchestry.store.summary import LEARNING, books, failures


def side_by_side(labels: Sequence[str], columns: Sequence[Mapping[str, str]]) -> str:
    """One column per run, one row per fact, in the order of the first run."""
    names = list(dict.fromkeys(name for column in columns for name in column))
    rows = ([inline(name), *(inline(one.get(name, "-")) for one in columns)] for name in names)
    return table(["", *map(inline, labels)], rows, figures=False)


def curves(arms: Sequence[Arm], smooth: int) -> str:
    """The reward, its parts and dev rewards at the first, best and last point."""
    unit = "updates taken" if axis(arms[0].runs[0]) == "updates" else "episode"
    header = ["", *(f"{which} (at {unit})" for which in ("first", "best", "last")), "points"]
    return table(header, [row for arm in arms for row in _curves(arm, smooth, len(arms) > 1)])


def _curves(arm: Arm, smooth: int, several: bool) -> Iterator[list[str]]:
    who = f"{inline(arm.label)}: " if several else ""
    if found := curve(arm.runs, episode_reward, smooth):
        yield [f"{who}**{reward_name(arm.runs[0])}**", *_points(found)]
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


def learning(arms: Sequence[Arm]) -> str:
    """What trained answers were like: each run's figures in the first and the last quarter of its
    updates; '' if no weights were trained."""
    rows = list[list[str]]()
    for experiment in (one for arm in arms for one in arm.experiments):
        events = experiment.run.events
        states = [event.state for event in events if isinstance(event, Learned)]
        size = max(1, len(states) // QUARTER)
        for name, meaning in LEARNING.items():
            parts = [
                [s[name] for s in half if name in s] for half in (states[:size], states[-size:])
            ]
            if all(parts):
                who = f"{inline(experiment.label)}: " if len(arms) > 1 else ""
                rows.append([f"{who}{meaning}", *(f"{fmean(part):.3g}" for part in parts)])
    header = ["", "first quarter of the updates", "last quarter"]
    return table(header, rows) if rows else ""


def _points(found: Curve) -> list[str]:
    last = len(found.x) - 1
    top = max(range(len(found.x)), key=lambda at: (found.mean[at], -at))
    said = [f"{found.mean[at]:.3f} ({found.x[at]})" for at in (0, top, last)]
    return [*said, f"{last + 1}"]


MEASURED = (
    *("problems", "trajectories", "reward, 95 %", "best of k, 95 %"),
    *("calls per problem", "USD"),
)


def held_out(experiments: Sequence[Experiment]) -> str | None:
    """One row per evaluation, with the team's gain over the untrained team."""
    rated = Rated.of([held for one in experiments for held in held_evaluations(one)])
    rows = [row for one in experiments for row in _held_out(one, rated, len(experiments) > 1)]
    header = [*("", "split", *MEASURED), *rated.names]
    header += ["more than as the run began, paired", "checkpoint"]
    return table(header, rows) if rows else None


@dataclass(frozen=True, slots=True)
class Rated:
    """Columns for what a task's tags tell: cooperation, problems solved, schemes seen."""

    rates: tuple[Figure, ...] = ()
    schemes: bool = False

    @classmethod
    def of(cls, found: Sequence[Held]) -> Self:
        """Those of the tasks that were measured."""
        runs = [held.run for held in found]
        return cls(tuple(rates(runs)), any(map(schemes_said, runs)))

    @property
    def names(self) -> list[str]:
        """The columns' heads."""
        return [*(f"{one.name}, 95 %" for one in self.rates), *["schemes seen"] * self.schemes]

    def cells(self, run: Salvaged) -> list[str]:
        """A measurement's."""
        found, own = [], {one.name for one in rates([run])}
        for one in self.rates:
            if one.name not in own:  # one model alone does not cooperate
                found.append("-")
                continue
            mean = over_problems(run, one)
            ends = f"[{one.words(mean.low)}, {one.words(mean.high)}]"
            found.append(f"{one.words(mean.mean)} {ends}")
        return [*found, *[inline(schemes_said(run)) or "-"] * self.schemes]


def _held_out(experiment: Experiment, rated: Rated, several: bool) -> Iterator[list[str]]:
    found = held_evaluations(experiment)
    for held in found:
        yield [
            _who(experiment, held, several),
            held.split,
            *_figures(held.measures),
            *rated.cells(held.run),
            _ahead(held, untrained(held, found)),
            inline(held.checkpoint) or "-",
        ]


def beside(experiments: Sequence[Experiment]) -> str | None:
    """One row per baseline, with the team's lead on the same problems."""
    rated = Rated.of([held for one in experiments for held in baselines(one)])
    rows = [row for one in experiments for row in _beside(one, rated, len(experiments) > 1)]
    header = ["", "split", *MEASURED, *rated.names, "the team's lead, paired", "tokens/s"]
    return table(header, rows) if rows else None


def _beside(experiment: Experiment, rated: Rated, several: bool) -> Iterator[list[str]]:
    for held in baselines(experiment):
        speed, team = held.measures.tokens_per_s, team_on(experiment, held)
        yield [
            _who(experiment, held, several),
            held.split,
            *_figures(held.measures),
            *rated.cells(held.run),
            _ahead(team, held),
            "-" if speed is None else f"{speed:,.0f}",
        ]


def at_k(experiments: Sequence[Experiment]) -> str | None:
    """pass@k and the reward of the best of k, of every measurement that has them."""
    found = [
        (one, held) for one in experiments for held in (*held_evaluations(one), *baselines(one))
    ]
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
        f"{measures.calls_per_problem:.1f}",
        f"{measures.usd:.4f}",
    ]


def _ahead(team: Held | None, other: Held | None) -> str:
    difference = ahead(team, other) if team and other else None
    return f"{signed(difference)}{lead(team, other)}" if team and other and difference else "-"


def kind_shares(arm: Arm) -> str:
    """Kinds of trajectories, then tags: first quarter of the episodes, last quarter, and all."""
    schemes = has_schemes(arm.runs)
    named = common_kinds(arm.runs)
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


_PURPOSES = {
    "act": "the agents' answers",
    "judge": "the judge",
    "credit": "replays for credit",
    "dev": "dev problems",
    "embed": "a program's embeddings",
}
"""Names of call purposes; others keep their own name."""


def costs(experiment: Experiment) -> dict[str, str]:
    """Results of the run, its evaluations and its baselines, by name."""
    run = experiment.run
    found = neural.costs(run) if run.neural else _totals(run, run.took)
    for name, runs in (
        ("evaluations", experiment.evaluations),
        ("baselines", experiment.baselines),
    ):
        found |= _around(name, list(runs.values()))
    return found


def _totals(run: Salvaged, wall: float) -> dict[str, str]:
    summary = run.summary
    return {
        "dollars": dollars(summary.cost_usd),
        **{f"of it for {use}": dollars(usd) for use, usd in _uses(run).items()},
        "of it for calls without an answer": dollars(summary.lost_usd),
        **{f"of it at {name}": dollars(usd) for name, usd in summary.cost_by_provider.items()},
        "calls answered by a model": f"{summary.calls:,}",
        **{f"of them at {name}": f"{n:,}" for name, n in summary.calls_by_provider.items()},
        "answers from the cache": f"{summary.cache_hits:,}",
        "tokens in": f"{summary.input_tokens:,}",
        "tokens out": f"{summary.output_tokens:,}",
        "wall time": duration(wall),
        "tokens out a second": f"{summary.output_tokens / wall:,.0f}" if wall else "-",
    }


def _uses(run: Salvaged) -> dict[str, float]:
    """Dollars by purpose of the calls."""
    found: dict[str, float] = {}
    for row in run.summary.usage:
        use = _PURPOSES.get(row.purpose, row.purpose)
        found[use] = found.get(use, 0.0) + row.usd
    return found


def _around(name: str, runs: Iterable[Salvaged]) -> dict[str, str]:
    """The sums over a run's evaluations, or its baselines; nothing if there are none."""
    summaries = [run.summary for run in runs]
    if not summaries:
        return {}
    return {
        f"{name}: dollars": dollars(sum(summary.cost_usd for summary in summaries)),
        f"{name}: calls answered by a model": f"{sum(summary.calls for summary in summaries):,}",
    }


def by_agent(run: Salvaged) -> list[list[str]]:
    """One row per agent and purpose: calls, from the cache, tokens in and out, dollars."""
    return [
        [
            row.agent,
            _PURPOSES.get(row.purpose, row.purpose),
            f"{row.calls:,}",
            f"{row.cache_hits:,}",
            f"{row.input_tokens:,}",
            f"{row.output_tokens:,}",
            f"{row.usd:.4f}",
        ]
        for row in run.summary.usage
    ]


def fault_counts(run: Run) -> dict[str, str]:
    """Counts by name, with their totals; every run that asks a model has the same names."""
    events, failed = run.events, failures(run.events)
    processes = {
        "processes after the first (resumes)": str(max(0, _count(events, Opened) - 1)),
        "how its processes ended": _ends(events),
    }
    if run.neural:
        return processes
    answers = [e for e in events if isinstance(e, Answered) and e.source != "failed"]
    drawn = [event.completion for event in answers if event.source != "refused"]
    acts = [event.completion for event in answers if event.purpose == "act"]
    empty = sum(not (one.text.strip() or one.calls) for one in drawn)
    return {
        "answers cut off at the length limit": _of(_stops(answers)["length"], len(answers)),
        "the agents' own among them": _of(sum(c.stop == "length" for c in acts), len(acts)),
        "empty answers": _of(empty, len(drawn)),
        "prompts longer than the model's context": _of(_stops(answers)["too_long"], len(answers)),
        "other stop reasons than end and length": _others(answers),
        "calls that failed for good, their samples left out": str(len(failed)),
        "calls refused to programs, which were told why": str(books(events).refused_calls),
        "episodes that failed, and are in no figure": str(len(run.failed)),
        "attempts that failed and were tried again or given up": _why(events, Released),
        "calls lost, charged at their worst case": _why(events, Lost),
        "states that the task could not score, counted as 0": _unscored(events),
        "judgements that were malformed": _malformed(run.episodes),
        "groups of several samples whose advantages are all zero": flat_groups(run.episodes),
        "actions that an update left out, for want of variance": skipped(events),
        "times that finished episodes were taken back": str(_count(events, RolledBack)),
        **processes,
    }


def _of(count: int, whole: int) -> str:
    return str(Portion(count, whole)) if whole else "none"


def _count(events: Sequence[Event], kind: type[Opened] | type[RolledBack]) -> int:
    return sum(isinstance(event, kind) for event in events)


def _stops(answers: Sequence[Answered]) -> Counter[str]:
    return Counter(event.completion.stop for event in answers)


def _others(answers: Sequence[Answered]) -> str:
    found = {k: n for k, n in sorted(_stops(answers).items()) if k not in ("end", "length")}
    return _listed(found)


def _unscored(events: Sequence[Event]) -> str:
    scores = {event.key: event.score for event in events if isinstance(event, Scored)}
    return _of(sum(TASK_ERROR in score.tags for score in scores.values()), len(scores))


def _why(events: Sequence[Event], kind: type[Released] | type[Lost]) -> str:
    """Their number, and the most frequent message."""
    said = Counter(event.why or "no reason given" for event in events if isinstance(event, kind))
    return _listed(dict(said.most_common(3)), sum(said.values()))


def _listed(counts: dict[str, int], whole: int | None = None) -> str:
    total = sum(counts.values()) if whole is None else whole
    named = "; ".join(f"{count}: {name}" for name, count in counts.items())
    return f"{total} ({named})" if total else "0"


def _malformed(episodes: Sequence[EpisodeRecord]) -> str:
    outcomes: Counter[str] = sum((Counter(e.judgements) for e in episodes), Counter())
    return _of(outcomes["malformed"], sum(outcomes.values()))


def flat_groups(episodes: Sequence[EpisodeRecord]) -> str:
    """Groups without a learning signal: all samples of the state have the same value. A state that
    was sampled once, as each later one of a chain, is no group to compare."""
    groups = [group.advantages for episode in episodes for group in episode.groups]
    compared = [group for group in groups if len(group) > 1]
    flat = sum(all(abs(advantage) <= FAINTEST for advantage in group) for group in compared)
    return _of(flat, len(compared))


def skipped(events: Sequence[Event]) -> str:
    """Actions that taught nothing, of all that updates of weights were given."""
    states = [event.state for event in events if isinstance(event, Learned)]
    left = sum(int(state.get("skipped", 0)) for state in states)
    return _of(left, left + sum(int(state.get("samples", 0)) for state in states))


def _ends(events: Sequence[Event]) -> str:
    counts = Counter(event.reason for event in events if isinstance(event, Stopped))
    cut = _count(events, Opened) - sum(counts.values())
    ends = [f"{reason} {count}" for reason, count in counts.items()]
    return ", ".join([*ends, *([f"running or cut off {cut}"] if cut > 0 else [])]) or "-"
