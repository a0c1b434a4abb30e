"""`orchestry rate`: a person's word on trajectories, which outranks the judge."""

from __future__ import annotations

import io
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import click

from orchestry.cli.options import RUN

if TYPE_CHECKING:
    from orchestry.cli.console import Console
    from orchestry.judge.calibration import Shown
    from orchestry.store.journal import Rated
    from orchestry.store.records import EpisodeRecord
    from orchestry.store.run import Store

_UNHEARD = (
    "there is no terminal to ask in: give --episode N --rating X to record a rating, or --show to "
    "see those there are"
)


@click.command(name="rate")
@click.argument("run", type=RUN)
@click.option("--best", type=int, default=3, metavar="N", help="Ask about so many best ones.  [3]")
@click.option("--worst", type=int, default=3, metavar="N", help="And so many worst ones.  [3]")
@click.option("--episode", type=int, metavar="N", help="Rate a trajectory of this episode only.")
@click.option("--node", metavar="ID", help="The node where it ends.  [the episode's best leaf]")
@click.option("--rating", metavar="X", help="Record this rating, 0 to 10, and ask nothing.")
@click.option("--comment", metavar="T", help="What to record beside --rating.")
@click.option("--show", is_flag=True, help="Ask nothing: all ratings, and the agreement.")
@click.option("--verbose", is_flag=True, expose_value=False, help="Tracebacks of errors.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(run: Path, show: bool, as_json: bool, **asked: Any) -> int:
    """Rate the best and worst trajectories of a run, and see how far you agree with the judge.

    A rating goes from 0 (useless) to 10 (could not be better). It outranks the judge where it is
    given, and calibrates it elsewhere, once the run is resumed. Enter alone skips a trajectory, q
    stops; every rating is kept at once. The last one on a node counts.

    So that they can't sway you, reward, feedback, credit and the judge's number are shown only
    after your rating, and best and worst come shuffled; of each kind at most one a problem.
    """
    from orchestry.store.run import existing

    folder = existing(run)
    _check(show, **asked)
    if show:
        recorded: list[Rated] = []
    elif asked["rating"] is not None:
        recorded = [_record_one(folder, **asked)]
    else:
        recorded = _ask_all(folder, **asked)
    _report(folder, recorded, show=show, as_json=as_json)
    return 0


def _check(
    show: bool,
    best: int,
    worst: int,
    episode: int | None,
    node: str | None,
    rating: str | None,
    comment: str | None,
) -> None:
    """Raises ConfigError for options that contradict each other, or that need a terminal."""
    from orchestry.core.errors import ConfigError

    if show and (episode, node, rating, comment) != (None,) * 4:
        raise ConfigError("--show asks and records nothing: leave the other options out")
    if comment is not None and rating is None:
        raise ConfigError("--comment stands beside a rating: give --rating X too")
    if episode is None and (node is not None or rating is not None):
        raise ConfigError("which episode? Give --episode N too")
    if show or rating is not None:
        return
    if min(best, worst) < 0 or (episode is None and best == worst == 0):
        raise ConfigError(
            f"--best {best} --worst {worst} leave nothing to rate: give numbers of at least 0, one "
            "of them above"
        )
    if not (sys.stdin.isatty() and sys.stderr.isatty()):
        raise ConfigError(_UNHEARD)


def _record_one(
    folder: Path, *, episode: int, node: str | None, rating: str, comment: str | None, **_: int
) -> Rated:
    from orchestry.judge.calibration import find, read_rating
    from orchestry.store.run import Store

    number = read_rating(rating)
    with Store(folder) as store:
        shown = find(_episodes(folder), episode, node)
        return _record(store, shown, number, comment or "")


def _ask_all(
    folder: Path, *, best: int, worst: int, episode: int | None, node: str | None, **_: None
) -> list[Rated]:
    """Asks about one trajectory after another; returns what was recorded."""
    from orchestry.cli.console import Console
    from orchestry.judge.calibration import extremes, find
    from orchestry.store.run import Store

    with Store(folder) as store:
        records = _episodes(folder)
        if episode is None:
            chosen = extremes(records, best, worst)
        else:
            chosen = [find(records, episode, node)]
        if isinstance(sys.stdin, io.TextIOWrapper):
            sys.stdin.reconfigure(errors="replace")  # a terminal that types another encoding
        return _dialogue(store, chosen, Console(stderr=True))


def _episodes(folder: Path) -> Sequence[EpisodeRecord]:
    from orchestry.core.errors import ConfigError
    from orchestry.store.run import load_run

    records = load_run(folder).episodes
    if not records:
        raise ConfigError(
            f"{folder} has no finished episode to rate: `orchestry resume {folder}` plays some"
        )
    return records


def _dialogue(store: Store, chosen: Sequence[Shown], console: Console) -> list[Rated]:
    """Shows the work, asks, and only then shows the numbers."""
    from orchestry.cli.rate_view import numbers_panel, work_panel
    from orchestry.core.errors import Interrupted

    recorded: list[Rated] = []
    try:
        for place, shown in enumerate(chosen, start=1):
            console.print(work_panel(shown, f"{place} of {len(chosen)}"))
            answer = _ask_rating(store, shown, console)
            if answer == "stop":
                break
            if answer != "skip":
                recorded.append(_record(store, shown, answer, ""))
                comment = _line(console, "comment (Enter for none): ")
                if comment.strip():
                    recorded[-1] = _record(store, shown, answer, comment)
            console.print(numbers_panel(shown, None if answer == "skip" else answer))
    except KeyboardInterrupt:
        console.print()
        ratings = "rating is" if len(recorded) == 1 else "ratings are"
        raise Interrupted(
            f"interrupted; {len(recorded)} {ratings} kept: `orchestry rate {store.folder}` goes on"
        ) from None
    return recorded


def _ask_rating(store: Store, shown: Shown, console: Console) -> float | Literal["skip", "stop"]:
    """A rating in [0, 1]; anything that is none is asked for again."""
    from orchestry.core.errors import ConfigError
    from orchestry.judge.calibration import TOP, read_rating
    from orchestry.store.journal import last_words

    before = last_words(store.events).get(shown.key)
    skips = f"keeps your {before.rating * TOP:g}" if before else "skips"
    while True:
        text = _line(console, f"rating, 0 to {TOP} (Enter {skips}, q stops): ")
        if not text or text.strip() == "q":
            return "stop"
        if not text.strip():
            return "skip"
        try:
            return read_rating(text.strip())
        except ConfigError as error:
            console.print(str(error), style="yellow", markup=False, highlight=False)


def _line(console: Console, prompt: str) -> str:
    """What a person types, with the end of its line; "" where the terminal has no more."""
    console.print(prompt, end="", style="bold", markup=False, highlight=False)
    line = sys.stdin.readline()
    if not line.endswith("\n"):
        console.print()
    return line


def _record(store: Store, shown: Shown, rating: float, comment: str) -> Rated:
    """Puts a rating on the disk."""
    from orchestry.judge.calibration import rated

    event = rated(shown, rating, comment, time.time())
    store.journal.append(event)
    store.journal.sync()
    return event


def _report(folder: Path, recorded: Sequence[Rated], *, show: bool, as_json: bool) -> None:
    """What was recorded, and the agreement over all that was ever rated in this run."""
    from orchestry.cli.rate_view import agreement_table, ratings_table
    from orchestry.cli.screen import console, framed
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
            "recorded": [event.model_dump(exclude={"kind", "at"}) for event in recorded],
            "agreement": {"judge": asdict(judge), "reward": asdict(task)},
            "calibration": asdict(fitted),
        }
        click.echo(json.dumps(found))
        return
    where = console()
    if show and said:
        where.print(ratings_table(run.episodes, said))
        where.print()
    framed(where, agreement_table(judge, task, fitted), "agreement")
