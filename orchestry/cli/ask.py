"""`orchestry ask`: the team of a run, with what it learned, on a new input."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import (
    BUDGET,
    OUTPUT,
    RUN,
    SEARCH,
    Json,
    Patience,
    RunFolder,
    TaskPath,
    Trusted,
    flag,
    option,
    trusting,
    which_update,
)

if TYPE_CHECKING:
    from orchestry.cli.console import Console
    from orchestry.engine.ask import Answer

_Input = Annotated[
    str | None,
    typer.Argument(
        metavar="INPUT",
        help="A text, or a JSON object as a line of problems.jsonl; `-` reads stdin.",
    ),
]
app = App()


@app.command("ask")
def _command(
    run: RunFolder,
    given: _Input = None,
    file: Annotated[
        Path | None,
        option(RUN, "Read the input from this file.", dir_okay=False, metavar="FILE"),
    ] = None,
    search: Annotated[
        bool, flag(SEARCH, "The run's own search, instead of one pass.", "--search")
    ] = False,
    update: Annotated[
        str | None,
        option(
            RUN,
            "The team after update N (0: the untrained team), or the best on dev.  [the last]",
            metavar="N|best",
        ),
    ] = None,
    seed: Annotated[
        int | None, option(RUN, "Another seed, another answer.  [the run's]", min=0, metavar="S")
    ] = None,
    task_path: TaskPath = None,
    trust: Trusted = False,
    budget: Annotated[
        float | None, option(BUDGET, "Hard cap in dollars.  [0.25]", min=0, metavar="USD")
    ] = None,
    patience: Patience = None,
    verbose: Annotated[
        bool, flag(OUTPUT, "What each agent wrote, on stderr, and tracebacks.", "--verbose")
    ] = False,
    as_json: Json = False,
) -> None:
    """Ask a run's team, with what it learned, for work on a new input.

    Each agent acts once in each of its turns. What the team hands over goes to stdout; what each
    agent wrote to stderr if that is a terminal. A task that needs more than a text takes a JSON
    object with `prompt` and `data`; without it, an error names the missing fields. A reward is
    shown where the task can compute it. The same command again returns the same answer at no cost.
    """
    from orchestry.cli.screen import console
    from orchestry.cli.watch import watching
    from orchestry.engine.ask import BUDGET_USD, ask

    with watching(verbose=verbose) as observer:
        found = ask(
            run,
            _input(given, file),
            search=search,
            budget_usd=BUDGET_USD if budget is None else budget,
            update=which_update(update),
            seed=seed,
            observer=observer,
            patience_s=patience,
            task_path=task_path or (),
            trust=trusting(trust),
        )
    _show(console(stderr=True), found, verbose)
    typer.echo(json.dumps(_plain(run, found)) if as_json else found.text)


def _input(given: str | None, file: Path | None) -> str | dict[str, Any]:
    """The text or object; raises ConfigError for none, two, or an unreadable one."""
    from orchestry.core.errors import ConfigError, reason
    from orchestry.core.files import text_of

    if (given is None) == (file is None):
        raise ConfigError("give one input: a text, `-` for stdin, or --file FILE")
    try:
        if file is not None:
            text = text_of(file.read_bytes())
        else:
            text = sys.stdin.read() if given == "-" else str(given)
            text = text.removeprefix("\ufeff")  # of a file that was piped in
    except OSError as error:
        why = error.strerror or reason(error)
        raise ConfigError(
            f"the input {file or 'on stdin'} can't be read ({why}): give a text file that exists"
        ) from None
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"the input {file or 'on stdin'} can't be read ({reason(error)}): give a text in UTF-8"
        ) from None
    return _object(text) or text.rstrip("\n")


def _object(text: str) -> dict[str, Any] | None:
    """The problem that a text is in JSON: an object with `prompt`. None for any other text; but
    raises ConfigError for one that begins as an object does, or a list of them, since it would be
    paid as a text."""
    from orchestry.core.errors import ConfigError, reason

    try:
        found = json.loads(text)
        why = "it is a list" if isinstance(found, list) else "it lacks prompt"
    except (ValueError, RecursionError) as error:
        found, why = None, f"it can't be read: {reason(error)}"
    if isinstance(found, dict) and "prompt" in found:
        return found
    if re.match(r'\s*(\[\s*)?\{\s*"', text):
        raise ConfigError(
            f'the input begins as a JSON object ({why}): give {{"prompt": TEXT}}, also for a text '
            "that begins so"
        )
    return None


def _show(where: Console, found: Answer, verbose: bool) -> None:
    """What each agent wrote, for a person; then the figures."""
    if verbose or where.is_terminal:
        _show_turns(where, found)
    _say_figures(where, found)


def _show_turns(where: Console, found: Answer) -> None:
    """What each agent wrote, without what stands in the answer itself."""
    from rich.markup import escape
    from rich.text import Text

    from orchestry.cli.screen import print_framed
    from orchestry.engine.ask import headed
    from orchestry.report.text import plain

    for role, text in found.turns:
        if text != found.text and headed(role, text) not in found.text:
            print_framed(where, Text(plain(text).strip() or "(empty)"), escape(role), expand=True)


def _say_figures(where: Console, found: Answer) -> None:
    from orchestry.cli.console import say

    summary = found.run.summary
    reward = "no reward" if found.reward is None else f"reward {found.reward:.3f}"
    said = f"{reward}, {summary.calls} calls, ${summary.cost_usd:.4f}, {found.run.folder}"
    say(where, f"{said}: {found.feedback}" if found.feedback else said)


def _plain(run: Path, found: Answer) -> dict[str, Any]:
    summary = found.run.summary
    return {
        "run_dir": str(run),
        "folder": str(found.run.folder),
        "task": summary.task,
        "model": f"{summary.provider}/{summary.model}",
        "update": found.update,
        "answer": found.text,
        "turns": [{"agent": role, "text": text} for role, text in found.turns],
        "reward": found.reward,
        "feedback": found.feedback,
        "calls": summary.calls,
        "cost_usd": summary.cost_usd,
    }
