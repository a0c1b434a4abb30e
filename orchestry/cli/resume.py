"""`orchestry resume`: go on where a run stopped."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from orchestry.cli.options import RUN, task_path_option, trust_option, trusting
from orchestry.cli.options import patience as patience_option


@click.command(name="resume")
@click.argument("run", type=RUN)
@click.option("--budget", type=float, metavar="USD", help="A new hard cap for the whole run.")
@click.option("--episodes", type=int, metavar="N", help="A new number of episodes in all.")
@click.option(
    "--set",
    "sets",
    metavar="A.B=C",
    multiple=True,
    help="What a run may go on with otherwise, such as learn.learning_rate; may be repeated.",
)
@click.option(
    "--accept-changes",
    "accept",
    is_flag=True,
    help="Go on although config.yaml, the task or the base changed, or the journal lost its end.",
)
@task_path_option
@trust_option
@patience_option
@click.option("--show-best", is_flag=True, help="Show the best trajectory: advantages, credits.")
@click.option("--verbose", is_flag=True, help="A line an episode, and tracebacks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    run: Path,
    budget: float | None,
    episodes: int | None,
    sets: tuple[str, ...],
    accept: bool,
    task_path: tuple[Path, ...],
    trust: bool,
    patience: float | None,
    show_best: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Go on with a run that was stopped or killed.

    Answers that had arrived are not paid again, and the cap holds over all parts of the run.
    """
    from orchestry.cli.show import finish
    from orchestry.cli.watch import watching
    from orchestry.core.config import settings_of
    from orchestry.engine.run import resume

    changes: dict[str, Any] = settings_of(sets)
    if budget is not None:
        changes["budget"] = {**changes.get("budget", {}), "usd": budget}
    if patience is not None:
        changes["retry"] = {**changes.get("retry", {}), "patience_s": patience}
    if episodes is not None:
        changes["episodes"] = episodes
    if task_path:
        changes["task_path"] = [str(path) for path in task_path]
    with watching(verbose=verbose) as observer:
        resumed = resume(run, changes, observer, trust=trusting(trust), accept=accept)
    return finish(resumed, show_best=show_best, as_json=as_json)
