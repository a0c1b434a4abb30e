"""`orchestry run`: one run from flags to result."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import click

from orchestry.cli.options import config_from, run_options


@click.command(name="run")
@run_options
@click.option(
    "--run-dir", type=click.Path(path_type=Path), help="The run's directory itself.  [runs/...]"
)
@click.option("--dry-run", is_flag=True, help="Print calls, tokens and dollars; spend nothing.")
@click.option("--show-best", is_flag=True, help="Show the best trajectory: advantages, credits.")
@click.option("--verbose", is_flag=True, help="A line an episode, and tracebacks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def command(
    run_dir: Path | None,
    dry_run: bool,
    show_best: bool,
    verbose: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Search or train on a task; writes a run directory.

    With a model that can judge, a judge rates what the reward leaves tied (in code_collaboration
    only with judge.enabled=true), and behaviours learned from the episodes enter the prompts once
    they passed a test: judge.*, credit.* and behaviors.*, explained in docs/learning.md; --dry-run
    shows what they cost, judge.enabled=false and behaviors.enabled=false do without.

    Every config key has its line in orchestry/core/config.py; `--set key=value` reaches them all.
    Exit codes: 0 done, 1 failed, 2 bad usage, 3 stopped at the budget, 4 stopped because the
    server stayed away, 130 interrupted.
    """
    config = config_from(**flags)
    if dry_run:
        from orchestry.cli.dry_run import show

        show(config, as_json=as_json)
        return 0
    from orchestry.cli.show import finish
    from orchestry.cli.watch import watching
    from orchestry.engine.run import train

    with watching(verbose=verbose) as observer:
        run = train(config, run_dir, observer)
    return finish(run, show_best=show_best, as_json=as_json)
