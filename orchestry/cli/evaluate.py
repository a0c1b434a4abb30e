"""`orchestry evaluate`: a run's team on problems it was not tuned on."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from orchestry.cli.options import RUN, task_path_option, trust_option, trusting, which_update
from orchestry.cli.options import patience as patience_option
from orchestry.core.types import SPLITS, Split

if TYPE_CHECKING:
    from orchestry.store.checkpoints import Which


@click.command(name="evaluate")
@click.argument("run", type=RUN)
@click.option("--split", type=click.Choice(SPLITS), default="test", show_default=True)
@click.option(
    "--update",
    type=which_update,
    metavar="N|best",
    help="The team as that update left it, 0 as it began, or the best on dev.  [the last]",
)
@click.option(
    "--samples",
    type=click.IntRange(1, 64),
    metavar="N",
    help="N independent trajectories of each problem, instead of the run's search.",
)
@click.option(
    "--episodes", type=click.IntRange(1), metavar="N", help="The first N problems.  [all]"
)
@click.option(
    "--compare/--no-compare",
    default=True,
    help="Also play the team as the run began, on the same seeds.  [compare]",
)
@task_path_option
@trust_option
@click.option("--budget", type=float, metavar="USD", help="Hard cap of this evaluation.")
@patience_option
@click.option("--show-best", is_flag=True, help="Show the best trajectory: advantages, credits.")
@click.option("--verbose", is_flag=True, help="A line an episode, and tracebacks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    run: Path,
    split: Split,
    update: Which,
    samples: int | None,
    episodes: int | None,
    compare: bool,
    task_path: tuple[Path, ...],
    trust: bool,
    budget: float | None,
    patience: float | None,
    show_best: bool,
    verbose: bool,
    as_json: bool,
) -> int:
    """Score a run's configuration on held-out problems, every one once.

    Results lie in RUN/evaluations/<split>, after N updates of what the team learned in
    RUN/evaluations/<split>--update-N, with --samples in a folder of their own; a second call goes
    on where the first stopped. A team that learned is compared with itself as the run began (update
    0), on the same problems and seeds, within the same --budget.
    """
    from orchestry.cli.compare import beside
    from orchestry.cli.show import finish
    from orchestry.cli.watch import watching
    from orchestry.engine.evaluate import How, compared, evaluate

    began = None
    how = How(split=split, update=update, samples=samples, episodes=episodes, patience_s=patience)
    how["task_path"], how["trust"] = task_path, trusting(trust)
    with watching(verbose=verbose) as observer:
        how["observer"] = observer
        if compare:
            found, began = compared(run, budget, **how)
        else:
            found = evaluate(run, budget_usd=budget, **how)
    if began is None:
        return finish(found, show_best=show_best, as_json=as_json)
    return beside(found, began, show_best=show_best, as_json=as_json)
