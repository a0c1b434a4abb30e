"""`orchestry judge check`: measures the judge of a config on answers of known worth."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from orchestry.cli.groups import Group
from orchestry.cli.options import patience, task_path_option, trust_option
from orchestry.cli.screen import console, fitted
from orchestry.core.config import PROVIDERS, RunConfig

if TYPE_CHECKING:
    from orchestry.engine.judge_forecast import Forecast

DEFAULT_PROBLEMS = 12


@click.group(cls=Group)
def command() -> None:
    """Measure a judge before trusting it."""


@command.command("check")
@click.option("--task", metavar="NAME", help="Whose problems and answers.  [code_review]")
@click.option(
    "--provider",
    type=click.Choice(PROVIDERS),
    help="Who judges.  [judge.provider, else the run's provider]",
)
@click.option("--model", metavar="M", help="Model of that provider.")
@click.option(
    "--problems",
    type=click.IntRange(1, 100_000),
    default=DEFAULT_PROBLEMS,
    metavar="N",
    help=f"Problems to judge answers of, out of train and dev.  [{DEFAULT_PROBLEMS}]",
)
@click.option("--budget", type=float, metavar="USD", help="Hard cap in dollars.  [5]")
@patience
@click.option("--seed", type=int, metavar="S", help="Which problems.  [0]")
@task_path_option
@click.option("--config", "file", type=click.Path(path_type=Path), help="YAML over the defaults.")
@click.option(
    "--set", "sets", metavar="A.B=C", multiple=True, help="Any config key; may be repeated."
)
@click.option("--allow-unsafe-code", is_flag=True, default=None, help="As for `orchestry run`.")
@trust_option
@click.option(
    "--run-dir",
    type=click.Path(path_type=Path),
    help="The check's directory; one that is there is gone on with.  [runs/judge-check--...]",
)
@click.option("--dry-run", is_flag=True, help="Print calls and worst-case dollars; ask nothing.")
@click.option("--verbose", is_flag=True, help="A line a problem, and tracebacks.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object on stdout.")
def check(
    provider: str | None,
    model: str | None,
    problems: int,
    run_dir: Path | None,
    dry_run: bool,
    verbose: bool,
    as_json: bool,
    **flags: Any,
) -> int:
    """Ask the configured judge about answers whose worth the task's own tests have settled.

    Each problem's answers are shown in an order and in its reverse, each twice. Test problems stay
    unseen. Exit codes: 0 whatever is found, 1 failed, 2 bad usage, 3 stopped at the budget, 4
    the server stayed away, 130 interrupted.
    """
    from orchestry.cli.options import config_from

    config = asked_of(config_from(**flags), provider, model)
    if dry_run:
        from orchestry.cli.notes import Notes
        from orchestry.engine.judge_forecast import forecast

        found = forecast(config, problems, Notes(console(stderr=True)))
        click.echo(found.model_dump_json() if as_json else _forecast(found))
        return 0
    from orchestry.cli.judge_show import finish, watching
    from orchestry.engine.judge_check import check as run_check

    with watching(verbose=verbose) as watch:
        report = run_check(config, problems, run_dir, watch)
    return finish(report, as_json=as_json)


def asked_of(config: RunConfig, provider: str | None, model: str | None) -> RunConfig:
    """The config with the judge that the flags name; settings of another vendor do not hold."""
    judge = config.judge.provider or config.provider
    if provider is not None and judge.name not in ("auto", provider):
        judge = judge.model_copy(update={"model": None, "base_url": None})
    if provider is not None:
        judge = judge.model_copy(update={"name": provider})
    if model is not None:
        judge = judge.model_copy(update={"model": model})
    return config.model_copy(update={"judge": config.judge.model_copy(update={"provider": judge})})


def _forecast(found: Forecast) -> str:
    from orchestry.report.words import counted

    cap = "no budget" if found.budget_usd is None else f"of the budget of ${found.budget_usd:g}"
    problems, calls = counted(found.problems, "problem"), counted(found.calls, "call")
    return (
        f"judge check of {found.provider}/{found.model} on {found.task}: {problems}\n"
        + fitted(
            f"{calls}, {found.most_calls} if every verdict needs a repair; about "
            f"{found.input_tokens:,} tokens in"
        )
        + f"\nat most ${found.worst_usd:.4f}, {cap}"
    )
