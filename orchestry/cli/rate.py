"""`orchestry rate`: a person's ratings of trajectories, which outrank the judge's."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, NamedTuple

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import OUTPUT, Json, RunFolder, flag, option

if TYPE_CHECKING:
    from rich.console import Group, RenderableType
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from orchestry.cli.console import Console
    from orchestry.judge.calibration import Agreement, Calibration, Shown
    from orchestry.store.journal import Rated
    from orchestry.store.records import EpisodeRecord, NodeRecord
    from orchestry.store.run import Run, Store

_UNHEARD = (
    "there is no terminal to ask in: give --episode N --rating X to record a rating, or --show to "
    "see the recorded ratings"
)


RATED = "What is rated"
app = App()


class _Flags(NamedTuple):
    """Options that choose what is rated, and how."""

    best: int
    worst: int
    episode: int | None
    node: str | None
    rating: str | None
    comment: str | None
    override: bool


@app.command("rate")
def _command(
    run: RunFolder,
    best: Annotated[int, option(RATED, "Rate the N best trajectories.", metavar="N")] = 3,
    worst: Annotated[int, option(RATED, "And the N worst ones.", metavar="N")] = 3,
    episode: Annotated[
        int | None, option(RATED, "Rate a trajectory of this episode only.", metavar="N")
    ] = None,
    node: Annotated[
        str | None,
        option(RATED, "The node where it ends.  [the episode's best leaf]", metavar="ID"),
    ] = None,
    rating: Annotated[
        str | None, option(RATED, "Record this rating, 0 to 10, and ask nothing.", metavar="X")
    ] = None,
    comment: Annotated[
        str | None, option(RATED, "A comment to record with `--rating`.", metavar="T")
    ] = None,
    override: Annotated[
        bool, flag(RATED, "Ratings replace the reward too, for learning.", "--override")
    ] = False,
    show: Annotated[
        bool, flag(OUTPUT, "Ask nothing: all ratings, and the agreement.", "--show")
    ] = False,
    verbose: Annotated[bool, flag(OUTPUT, "Tracebacks of errors.", "--verbose")] = False,
    as_json: Json = False,
) -> int:
    """Rate the best and worst trajectories of a run, and see how far you agree with the judge.

    Ratings go from 0 (useless) to 10 (could not be better). A rating outranks the judge for that
    trajectory and, once the run is resumed, calibrates it elsewhere. With --override it is also the
    trajectory's reward, for learning: reports keep the task's own. Enter skips a trajectory, q
    stops. Every rating is saved at once; the last one for a node counts.

    Reward, feedback, credit and the judge's number are shown only after your rating, so that they
    don't influence you. Best and worst come shuffled, with at most one of each kind per problem.
    """
    from orchestry.store.run import check_texts, load_run

    found = load_run(run)
    check_texts(found)
    folder = found.folder
    asked = _Flags(best, worst, episode, node, rating, comment, override)
    _check(show, asked)
    if show:
        recorded: list[Rated] = []
    elif rating is not None:
        recorded = [_record_one(folder, asked, rating)]
    else:
        recorded = _ask_all(folder, asked)
    _report(folder, recorded, show=show, as_json=as_json)
    return 0


def _check(show: bool, asked: _Flags) -> None:
    """Raises ConfigError for contradicting options, or if a terminal is needed."""
    from orchestry.core.errors import ConfigError

    best, worst, episode, node, rating, comment, override = asked
    if show and ((episode, node, rating, comment) != (None,) * 4 or override):
        raise ConfigError("--show asks and records nothing: leave the other options out")
    if comment is not None and rating is None:
        raise ConfigError("--comment needs a rating: give --rating X too")
    if episode is None and (node is not None or rating is not None):
        raise ConfigError("which episode? Give --episode N too")
    if show or rating is not None:
        return
    if min(best, worst) < 0 or (episode is None and best == worst == 0):
        raise ConfigError(
            f"--best {best} --worst {worst} leave nothing to rate: both must be at least 0, and "
            "one of them above 0"
        )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(_UNHEARD)


def _record_one(folder: Path, asked: _Flags, rating: str) -> Rated:
    from orchestry.judge.calibration import find, read_rating
    from orchestry.store.run import Store

    assert asked.episode is not None, "_check saw to it"
    number = read_rating(rating)
    with Store(folder) as store:
        shown = find(_episodes(folder), asked.episode, asked.node)
        _check_override(asked, shown)
        return _record(store, shown, number, asked.comment or "", asked.override)


def _check_override(asked: _Flags, shown: Shown) -> None:
    """Raises ConfigError for a move on the way, whose reward no learner reads."""
    from orchestry.core.errors import ConfigError

    leaves = [leaf.id for leaf in shown.record.leaves()]
    if asked.override and shown.node.id not in leaves:
        raise ConfigError(
            f"--override replaces the reward of a finished trajectory, and node {shown.node.id} is "
            f"on the way to one: give --node with a leaf ({', '.join(leaves)}), or leave out "
            "--override"
        )


def _ask_all(folder: Path, asked: _Flags) -> list[Rated]:
    """Asks about one trajectory after another; returns what was recorded."""
    from orchestry.cli.console import Console
    from orchestry.judge.calibration import extremes, find
    from orchestry.store.run import Store

    with Store(folder) as store:
        records = _episodes(folder)
        if asked.episode is None:
            chosen = extremes(records, asked.best, asked.worst)
        else:
            chosen = [find(records, asked.episode, asked.node)]
            _check_override(asked, chosen[0])
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # the terminal uses another encoding
        return _dialogue(store, chosen, Console(stderr=True), asked.override)


def _episodes(folder: Path) -> Sequence[EpisodeRecord]:
    from orchestry.core.errors import ConfigError
    from orchestry.store.run import load_run

    records = load_run(folder).episodes
    if not records:
        raise ConfigError(
            f"{folder} has no finished episode to rate: `orchestry resume {folder}` plays some"
        )
    return records


def _dialogue(
    store: Store, chosen: Sequence[Shown], console: Console, override: bool
) -> list[Rated]:
    """Shows the work, asks for a rating, and then shows the numbers."""
    from orchestry.core.errors import Interrupted

    recorded: list[Rated] = []
    try:
        for place, shown in enumerate(chosen, start=1):
            console.print(work_panel(shown, f"{place} of {len(chosen)}"))
            answer = _ask_rating(store, shown, console)
            if answer == "stop":
                break
            if answer != "skip":
                recorded.append(_record(store, shown, answer, "", override))
                comment = _line(console, "comment (Enter for none): ")
                if comment.strip():
                    recorded[-1] = _record(store, shown, answer, comment, override)
            console.print(numbers_panel(shown, None if answer == "skip" else answer))
    except KeyboardInterrupt:
        console.print()
        ratings = "rating is" if len(recorded) == 1 else "ratings are"
        raise Interrupted(
            f"interrupted; {len(recorded)} {ratings} kept: "
            f"`orchestry rate {store.folder}` continues"
        ) from None
    return recorded


def _ask_rating(store: Store, shown: Shown, console: Console) -> float | Literal["skip", "stop"]:
    """A rating in [0, 1]; asks again until the input is one."""
    from orchestry.core.errors import ConfigError
    from orchestry.judge.calibration import TOP_RATING, read_rating
    from orchestry.store.journal import last_words

    before = last_words(store.events).get(shown.key)
    skips = f"keeps your {before.rating * TOP_RATING:g}" if before else "skips"
    while True:
        text = _line(console, f"rating, 0 to {TOP_RATING} (Enter {skips}, q stops): ")
        if not text or text.strip() == "q":
            return "stop"
        if not text.strip():
            return "skip"
        try:
            return read_rating(text.strip())
        except ConfigError as error:
            console.print(str(error), style="yellow", markup=False, highlight=False)


def _line(console: Console, prompt: str) -> str:
    """The line a person types, with its end; "" at the end of input."""
    console.print(prompt, end="", style="bold", markup=False, highlight=False)
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        console.print()
    return line


def _record(store: Store, shown: Shown, rating: float, comment: str, override: bool) -> Rated:
    """Writes a rating to disk."""
    from orchestry.judge.calibration import rated

    event = rated(shown, rating, comment, time.time(), override=override)
    store.journal.append(event)
    store.journal.sync()
    return event


def _report(folder: Path, recorded: Sequence[Rated], *, show: bool, as_json: bool) -> None:
    """Shows what was recorded, and the agreement over all ratings of this run."""
    from rich.text import Text

    from orchestry.cli.screen import console, print_framed
    from orchestry.judge.calibration import agreement, calibration, judged_pairs, reward_pairs
    from orchestry.store.journal import last_words
    from orchestry.store.run import load_run

    run = load_run(folder)
    said = last_words(run.events)
    ratings = {key: event.rating for key, event in said.items()}
    judged = judged_pairs(run.episodes, ratings)
    judge, task = agreement(judged), agreement(reward_pairs(run.episodes, ratings))
    fitted = calibration(judged)
    if as_json:
        found = {
            "run_dir": str(folder),
            "recorded": [event.model_dump(exclude={"kind", "at", "answers"}) for event in recorded],
            "agreement": {"judge": asdict(judge), "reward": asdict(task)},
            "calibration": asdict(fitted),
        }
        typer.echo(json.dumps(found))
        return
    where = console()
    if late := _too_late(run, recorded):
        where.print(Text(late, style="yellow"))
    if show and said:
        where.print(ratings_table(run.episodes, said))
        where.print()
    print_framed(where, agreement_table(judge, task, fitted), "agreement")


def _too_late(run: Run, recorded: Sequence[Rated]) -> str:
    """A note on ratings of episodes that a local run has learned from already."""
    from orchestry.store.journal import Learned

    if run.config.get("backend") != "local":
        return ""
    updates = sum(isinstance(event, Learned) for event in run.events)
    learned = updates * int(run.config.get("learn", {}).get("every") or 0)
    late = sum(one.episode < learned for one in recorded)
    if not late:
        return ""
    return (
        f"{late} of {len(recorded)} ratings change no weights: update {updates} has learned from "
        f"the episodes before {learned}, and later updates learn from later ones only"
    )


# --- what a person sees: a trajectory, then the numbers; the agreement ----------


def work_panel(shown: Shown, title: str) -> Panel:
    """The problem as the first agent saw it, and every move; nothing that could influence a
    rating."""
    from rich.console import Group
    from rich.panel import Panel
    from rich.text import Text

    from orchestry.report.text import plain

    path = shown.record.path(shown.node.id)
    rows: list[RenderableType] = [
        Text(f"the problem, as {path[0].turns[0].agent} saw it", style="dim"),
        Text(plain(_problem(path[0]))),
    ]
    for node in path:
        for turn in node.turns:
            head = Text(turn.agent, style="bold cyan").append(f"  {node.id}", style="dim")
            text = plain(turn.completion.told)
            rows += [Text(), head, Text(text) if text else Text("(empty)", style="dim")]
    return Panel(Group(*rows), title=Text(f"{title}: episode {shown.record.episode}, {_id(shown)}"))


def numbers_panel(shown: Shown, rating: float | None) -> Panel:
    """The rating beside reward, parts, feedback, the judge's numbers and the credits."""
    from rich.panel import Panel
    from rich.table import Table
    from rich.text import Text

    from orchestry.report.text import plain

    facts = Table.grid(padding=(0, 2))
    facts.add_column(style="dim", no_wrap=True)
    if rating is not None:
        facts.add_row("you", Text(f"{rating:.3f}", style="bold"))
    parts = "  ".join(f"{part.name} {part.value:.2f}" for part in shown.node.score.parts)
    facts.add_row("reward", Text.assemble((f"{shown.reward:.3f}", "bold"), f"  ({parts})"))
    if shown.node.score.feedback:
        facts.add_row("", Text(plain(shown.node.score.feedback), style="dim"))
    for node in shown.record.path(shown.node.id):
        if node.judged is not None:
            facts.add_row("judge", _judged(node))
    for row in shown.record.credits:
        if row.leaf == shown.node.id:
            interval = f"[{row.low:+.3f}, {row.high:+.3f}]"
            facts.add_row("credit", f"{row.credit:+.3f}  {row.agent}, 95 % in {interval}")
    why = "as asked" if shown.why == "asked for" else f"one of the {shown.why} by reward"
    return Panel(facts, title=Text(why), expand=False)


def ratings_table(records: Sequence[EpisodeRecord], said: Mapping[tuple[int, str], Rated]) -> Table:
    """Every rated node in the order of play, with the judge's last number on its path."""
    from rich.table import Table
    from rich.text import Text

    from orchestry.judge.calibration import judged, task_reward
    from orchestry.report.text import plain

    table = Table("episode", "node", "problem", box=None, pad_edge=False, header_style="dim")
    for heading in ("you", "reward", "judge"):
        table.add_column(heading, justify="right", header_style="dim", no_wrap=True)
    table.add_column("comment", header_style="dim")
    for record in records:
        for node in record.nodes:
            event = said.get((record.episode, node.id))
            if event is not None:
                numbers = [_number(one) for one in (task_reward(node), judged(record, node))]
                you = _number(event.rating) + (" for the reward" if event.override else "")
                cells = (str(record.episode), node.id, record.problem, you, *numbers)
                table.add_row(*map(Text, cells), Text(plain(event.comment)))
    return table


def agreement_table(judge: Agreement, task: Agreement, fitted: Calibration) -> Group:
    """How far the ratings agree with judge and task, and how they calibrate the judge."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, header_style="dim")
    table.add_column("you and", no_wrap=True)
    for heading in ("rated", "pairs alike", "mean distance", "rank correlation"):
        table.add_column(heading, justify="right")
    for name, found in (("the judge", judge), ("the reward", task)):
        alike = "-" if found.alike is None else f"{found.alike:.0%} of {found.pairs}"
        numbers = map(_number, (found.difference, found.spearman))
        table.add_row(name, str(found.count), alike, *numbers)
    return Group(table, Text(), Text(_verdict(judge, task, fitted), style="dim"))


def _verdict(judge: Agreement, task: Agreement, fitted: Calibration) -> str:
    """A note on missing numbers, or on the judge's calibration."""
    from orchestry.judge.calibration import PRIOR

    if not task.count:
        return "Nothing is rated yet, so there is nothing to compare."
    if not judge.count:
        return "Nothing to compare: the judge rated neither these nodes nor the moves before them."
    counts = ", ".join(f"{number:g} as {fitted(number):.2f}" for number in (0.0, 0.5, 1.0))
    return f"By your ratings, and a prior worth {PRIOR:g}, the judge's numbers count: {counts}."


def _problem(first: NodeRecord) -> str:
    asked = [message.content for message in first.turns[0].messages if message.role == "user"]
    return asked[-1] if asked else "(nothing)"


def _judged(node: NodeRecord) -> Text:
    from rich.text import Text

    from orchestry.report.text import plain

    movers = " and ".join(turn.agent for turn in node.turns)
    text = Text.assemble((f"{node.judged:.3f}", "bold"), f"  {movers}'s move {node.id}")
    return text.append(f": {plain(node.judge_feedback)}" if node.judge_feedback else "")


def _id(shown: Shown) -> str:
    return f"{shown.record.problem}, node {shown.node.id}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3f}"
