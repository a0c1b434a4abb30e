"""`orchestry evaluate`: a run's team on problems it was not tuned on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestry.cli.options import which_update
from orchestry.types import SPLITS, Split

if TYPE_CHECKING:
    from orchestry.updates import Which


@click.command(name="evaluate")
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True)
@click.option(
    "--update",
    type=which_update,
    metavar="N|best",
    help="The team as that update left it, 0 as it began, or the best on dev.  [the last]",
)
@click.option("--budget", type=float, metavar="USD", help="Hard cap of this evaluation.")
@click.option("--show-best", is_flag=True, help="Show the best trajectory: advantages, credits.")
@click.option("--verbose", is_flag=True, help="A line an episode, and tracebacks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    run: Path,
    split: Split,
    update: Which,
    budget: float | None,
    show_best: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Score a run's configuration on held-out problems, every one once.

    Results lie in RUN/evaluations/<split>, after N updates of what the team learned in
    RUN/evaluations/<split>--update-N; a second call goes on where the first stopped. Problems and
    seeds are the same for every update, so --update 0 is what the team is to be compared with.
    """
    from orchestry.cli.show import finish
    from orchestry.cli.watch import watching
    from orchestry.engine import evaluate

    with watching(verbose=verbose) as observer:
        found = evaluate(run, split, budget, observer, update)
    return finish(found, show_best=show_best, as_json=as_json)
