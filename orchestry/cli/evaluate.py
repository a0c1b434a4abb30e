"""`orchestry evaluate`: a run's team on held-out problems, compared with the untrained team; and
the table of measurements that `orchestry baselines` uses too."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import (
    BUDGET,
    EVALUATION,
    Json,
    On,
    Patience,
    RunFolder,
    ShowBest,
    TaskPath,
    Trusted,
    Verbose,
    option,
    task_names,
    trusting,
    which_update,
)
from orchestry.core.choices import Split
from orchestry.core.errors import ConfigError
from orchestry.core.resolve import by_role, leaves, merge, settings_of

if TYPE_CHECKING:
    from rich.table import Table

    from orchestry.report.measures import Measures
    from orchestry.report.stats import Interval
    from orchestry.store.games import Evaluation, Mean
    from orchestry.store.run import Run

GAMES = 1000
"""Games that policies of backend ppo play."""
_Columns = list[tuple[str, list[str]]]
"""Columns that are never separated: a heading, and one cell per name."""
_Update = Annotated[
    str | None,
    option(
        EVALUATION,
        "The team after update N (0: the untrained team), or the best on dev.  [the last]",
        metavar="N|best",
    ),
]
Samples = Annotated[
    int | None,
    option(
        EVALUATION,
        "N independent trajectories per problem, instead of the run's search.",
        min=1,
        max=64,
        metavar="N",
    ),
]
Compare = Annotated[
    bool,
    option(
        EVALUATION,
        "Also play the untrained team, on the same seeds.",
        "--compare/--no-compare",
        metavar="",
    ),
]
_Episodes = Annotated[
    int | None, option(EVALUATION, "The first N problems.  [all]", min=1, metavar="N")
]
_Cap = Annotated[float | None, option(BUDGET, "Hard cap of this evaluation.", metavar="USD")]
_Sets = Annotated[
    list[str] | None,
    option(
        EVALUATION,
        "Other options of the task, such as options.bank=arxiv (backend ppo: of the game); may be "
        "repeated.",
        "--set",
        metavar="A.B=C",
    ),
]
_Task = Annotated[
    str | None,
    option(
        EVALUATION,
        "Another task, played with what the run learned. Roles are matched by name.",
        metavar="NAME",
        autocompletion=task_names,
    ),
]
_Map = Annotated[
    list[str] | None,
    option(
        EVALUATION,
        "There, the run's agent A plays the role B; may be repeated.",
        "--map",
        metavar="A=B",
    ),
]
_Against = Annotated[
    list[str] | None,
    option(
        EVALUATION,
        "Backend ppo: also this scripted team of the task's, such as random; may be repeated.",
        metavar="NAME",
    ),
]
app = App()


@app.command("evaluate")
def _command(
    run: RunFolder,
    split: Annotated[Split, option(EVALUATION, "Problems of this split.")] = "test",
    update: _Update = None,
    task: _Task = None,
    maps: _Map = None,
    sets: _Sets = None,
    against: _Against = None,
    samples: Samples = None,
    episodes: _Episodes = None,
    compare: Compare = True,
    task_path: TaskPath = None,
    on: On = None,
    trust: Trusted = False,
    budget: _Cap = None,
    patience: Patience = None,
    show_best: ShowBest = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> int:
    """Score a run's configuration on held-out problems, each played once.

    Results are written to `RUN/evaluations/<split>`, or `<split>--update-N` for a team that
    learned. With `--samples` they get their own folder. A second call continues where the first
    stopped. A team that learned is compared with the untrained team (update 0), on the same
    problems and seeds, within the same `--budget`.

    With `--task` the team plays another task's problems: its behaviours go into the prompts, and
    its adapters answer, for the roles of the agents' own names or those of `--map`. Roles that
    nobody plays stay untrained. `--set` takes that task's options, weights and sampling.

    Policies of backend ppo play new games. Each evaluation is a line of
    `RUN/evaluations/games.jsonl`, and `orchestry report` shows it.
    """
    from orchestry.cli.show import finish_run
    from orchestry.cli.watch import watching
    from orchestry.engine.evaluate import How, compared, evaluate
    from orchestry.store.run import load_run

    if (learned := load_run(run)).neural:
        other = {"--split": split != "test", "--no-compare": not compare, "--show-best": show_best}
        given = {"--update": update, "--samples": samples, "--budget": budget, "--on": on}
        other |= {name: value is not None for name, value in given.items()}
        other["--patience"] = patience is not None
        _refuse_task(run, task, maps)
        changes = _changes(run, [name for name in other if other[name]], sets, task_path)
        many = GAMES if episodes is None else episodes
        return _games(learned, changes, against or [], many, trust, verbose, as_json)
    if against:
        raise ConfigError("--against is for runs of backend ppo")
    how = How(split=split, samples=samples, episodes=episodes, patience_s=patience)
    how["update"], how["trust"] = which_update(update), trusting(trust)
    how["task_path"], how["executor"] = task_path or (), on or "local"
    how["task"], how["roles"], how["changes"] = task, _roles(maps or []), settings_of(sets or [])
    with watching(verbose=verbose) as how["observer"]:
        alone = None if compare else evaluate(run, budget_usd=budget, **how)
        found, began = (alone, None) if alone else compared(run, budget, **how)
    if began is None:
        return finish_run(found, show_best=show_best, as_json=as_json)
    return _beside(found, began, show_best=show_best, as_json=as_json)


def _refuse_task(run: Path, task: str | None, maps: Sequence[str] | None) -> None:
    """Raises ConfigError for another task, of a run of backend ppo."""
    if task or maps:
        raise ConfigError(
            f"{run} is a run of backend ppo, whose policies read the numbers of one game, and "
            "another task has others: leave out --task and --map; --set options.NAME=... plays "
            "other settings of that game"
        )


def _roles(maps: Sequence[str]) -> dict[str, str]:
    """By role, the agent that plays it. Raises ConfigError for a role that two are to play."""
    found = dict[str, str]()
    for text in maps:
        agent, _, role = text.partition("=")
        if not agent or not role:
            raise ConfigError(f"--map: '{text}' is not A=B: give the run's agent, then the role")
        if found.setdefault(role, agent) != agent:
            raise ConfigError(f"--map: {found[role]} and {agent} can't both play {role}")
    return found


# --- games as arrays ------------------------------------------------------------------------------


def _changes(
    run: Path, other: Sequence[str], sets: Sequence[str] | None, task_path: Sequence[Path] | None
) -> dict[str, Any]:
    """What --set and --task-path change, nested like the config. Raises ConfigError for what does
    not decide how policies are evaluated, and for `other` options."""
    from orchestry.core.ppo import MEASURES, unread

    changes: dict[str, Any] = by_role(settings_of(sets or []))
    if odd := [*other, *unread((key for key, _ in leaves(changes)), MEASURES)]:
        raise ConfigError(
            f"{run} is a run of backend ppo, whose last policy plays new games: "
            f"{', '.join(odd)} would have no effect: leave that out (--episodes says how many "
            f"games, --set which: {', '.join(MEASURES)})"
        )
    return {**changes, **({"task_path": [str(path) for path in task_path]} if task_path else {})}


def _games(
    run: Run,
    changes: Mapping[str, Any],
    against: Sequence[str],
    games: int,
    trust: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Plays the policies of a run of backend ppo; returns the exit code."""
    from orchestry.cli.watch import watching
    from orchestry.engine.neural import measure
    from orchestry.store.games import keep

    if games < 2:
        raise ConfigError(f"--episodes {games}: an interval needs at least 2 games")
    with watching(verbose=verbose) as observer:
        note = observer.note
        returns = measure(run, changes, games, note, scripts=against, trust=trusting(trust))
        found = _evaluation(run, changes, games, returns)
        try:
            keep(run.folder, found)
        except OSError as error:
            note(f"{error.filename} can't be written ({error.strerror}): no report will show this")
    if as_json:
        typer.echo(json.dumps({"run_dir": str(run.folder), **found.model_dump(mode="json")}))
    else:
        _show_games(found)
    return 0


def _evaluation(
    run: Run, changes: Mapping[str, Any], games: int, returns: Mapping[str, list[list[float]]]
) -> Evaluation:
    """What was played, and each team's means with their intervals."""
    from orchestry.engine.games import last_checkpoint
    from orchestry.store.games import Evaluation, Team

    config, last = merge(run.config, changes), last_checkpoint(run.events)
    assert last is not None  # it has played
    others = {name: value for name, value in changes.items() if name != "options"}
    teams = {
        team: Team(
            returns=_mean([fmean(one) for one in found]),
            by_agent=tuple(_mean(own) for own in zip(*found, strict=True)),
        )
        for team, found in returns.items()
    }
    return Evaluation(
        at=time.time(),
        options=config.get("options") or {},
        changes=dict(leaves(others)),
        games=games,
        seed=config["seed"],
        checkpoint=last.state["digest"],
        steps=last.state["steps"],
        teams=teams,
    )


def _mean(figures: Sequence[float]) -> Mean:
    from orchestry.report.stats import interval
    from orchestry.store.games import Mean

    return Mean(**interval(figures).plain())


def _show_games(found: Evaluation) -> None:
    from rich.table import Table

    from orchestry.cli.screen import console
    from orchestry.report.neural import played

    table = Table(box=None, padding=(0, 2, 0, 0), pad_edge=False, header_style="dim")
    agents = len(next(iter(found.teams.values())).by_agent)
    for head in ("team", "return", "95 %", *(f"agent {n}" for n in range(agents))):
        table.add_column(head, justify="left" if head == "team" else "right", no_wrap=True)
    for team, own in found.teams.items():
        whole = own.returns
        ends = f"{whole.low:.1f} to {whole.high:.1f}"
        table.add_row(team, f"{whole.mean:.1f}", ends, *(f"{one.mean:.1f}" for one in own.by_agent))
    console().print(table)
    console().print(f"{played(found)}; return: the mean over agents", style="dim")


# --- side by side ---------------------------------------------------------------------------------


def _beside(found: Run, began: Run, *, show_best: bool, as_json: bool) -> int:
    """Shows an evaluation beside the untrained team's; returns the exit code."""
    from rich.text import Text

    from orchestry.cli.screen import console
    from orchestry.cli.show import EXIT_CODES, finish_run
    from orchestry.report.measures import gain, measured, searched

    ends = EXIT_CODES[found.summary.stopped], EXIT_CODES[began.summary.stopped]
    difference = gain(found, began)
    both = len({e.problem for e in found.episodes} & {e.problem for e in began.episodes})
    column = "best of k" if searched(found) else "reward"
    if as_json:
        of = column.replace(" ", "_")
        plain = {
            **found.summary.model_dump(mode="json"),
            "untrained": began.summary.model_dump(mode="json"),
            "difference": difference and {**difference.plain(), "problems": both, "of": of},
        }
        typer.echo(json.dumps(plain))
        return max(ends)
    finish_run(found, show_best=show_best, as_json=False)
    name = found.folder.name.partition("--")[2].partition("--")[0].replace("-", " ")
    rows = {name: measured(found), "as the run began": measured(began)}
    shown(rows, f"{found.summary.task}, {len(found.episodes)} problems, equal seeds")
    if difference:
        console().print(Text(f"{column}, {name} minus as the run began: {_said(difference, both)}"))
    return max(ends)


def shown(found: Mapping[str, Measures | None], title: str) -> None:
    """One row per team; None if it has no finished episode."""
    from rich.text import Text

    from orchestry.cli.screen import console

    where = console()
    where.print(Text(f"\n{title}", style="bold"))
    for parts in ((*rewards(found),), passes(found)):
        for table in _tables([*found], parts, where.width):
            where.print(table, Text())
    where.print(
        Text(
            "reward: mean over all; best of k: over each problem's best; calls: per problem\n"
            "dollars: cached answers count as they would cost",
            style="dim",
        ),
    )


def rewards(found: Mapping[str, Measures | None]) -> tuple[_Columns, _Columns]:
    """Reward and best of k, with 95 % intervals over problems; and the cost."""
    rows = [_figures(one) if one else ["none played", "", "", "", ""] for one in found.values()]
    heads = (f"reward{'95 %':>10}", f"best of k{'95 %':>8}", "calls", "tokens/s", "dollars")
    columns = [(head, [row[place] for row in rows]) for place, head in enumerate(heads)]
    return columns[:2], columns[2:]


def passes(found: Mapping[str, Measures | None]) -> list[_Columns]:
    """pass@k with intervals, if the task defines `solved`."""
    ats = [one.pass_at if one else {} for one in found.values()]
    ks = sorted({k for at in ats for k in at})
    cells = {k: [_ends(at[k]) if k in at else "-" for at in ats] for k in ks}
    return [[(f"pass@{k}{'95 %':>10}", column)] for k, column in cells.items()]


def _tables(names: Sequence[str], parts: Sequence[_Columns], width: int) -> Iterator[Table]:
    """Splits the columns into as many tables as that width requires."""
    from rich.table import Table

    left, first = list(parts), max(map(len, names), default=0)
    while left:
        columns = left.pop(0)
        while left and first + _width(columns) + _width(left[0]) <= width:
            columns = [*columns, *left.pop(0)]
        out = Table(box=None, padding=(0, 1, 0, 0), pad_edge=False)
        out.add_column("", no_wrap=True)
        for head, _ in columns:
            out.add_column(head, justify="right", no_wrap=True)
        for name, *row in zip(names, *(cells for _, cells in columns), strict=True):
            out.add_row(name, *row)
        yield out


def _width(part: _Columns) -> int:
    """Width, including the space before each column."""
    return sum(1 + max(len(text) for text in (head, *cells)) for head, cells in part)


def _figures(one: Measures) -> list[str]:
    speed = "cached" if one.tokens_per_s is None else f"{one.tokens_per_s:,.0f}"
    cost = [f"{one.calls_per_problem:.1f}", speed, f"{one.usd:.4f}"]
    return [_ends(one.reward), _ends(one.best), *cost]


def _ends(one: Interval) -> str:
    return f"{one.mean:.3f} {one.low:.2f}-{one.high:.2f}"


def _said(difference: Interval, problems: int) -> str:
    """A paired difference of rewards as text, with a note if it is inconclusive."""
    from orchestry.report.stats import FEWEST_PROBLEMS
    from orchestry.report.text import counted

    seen = difference.low > 0 or difference.high < 0
    doubt = "" if seen else "; inconclusive: the interval contains 0"
    if problems < FEWEST_PROBLEMS:
        doubt = f"; inconclusive: at least {FEWEST_PROBLEMS} problems are needed"
    ends = f"[{difference.low:+.3f}, {difference.high:+.3f}]"
    scale = f"rewards are from 0 to 1; 95 % interval over {counted(problems, 'common problem')}"
    return f"{difference.mean:+.3f} ({scale}: {ends}{doubt})"
