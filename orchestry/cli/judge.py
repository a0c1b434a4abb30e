"""`orchestry judge check`: measures the judge of a config on answers of known scores."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import (
    MODEL,
    OUTPUT,
    RUN,
    AllowUnsafe,
    Budget,
    Config,
    Json,
    Model,
    Patience,
    Sets,
    TaskPath,
    Trusted,
    config_from,
    flag,
    option,
    spread,
    task_names,
)
from orchestry.cli.screen import console, fitted
from orchestry.core.choices import ProviderName

if TYPE_CHECKING:
    from orchestry.core.config import RunConfig
    from orchestry.engine.judge_forecast import Forecast

app = App("Measure a judge before trusting it.")


class Asked(TypedDict):
    """The flags that change the run's config."""

    task: Annotated[
        str | None,
        option(
            RUN,
            "Whose problems and answers.  [code_review]",
            metavar="NAME",
            autocompletion=task_names,
        ),
    ]
    seed: Annotated[int | None, option(RUN, "Which problems.  [0]", metavar="S")]
    task_path: TaskPath
    file: Config
    sets: Sets
    budget: Budget
    patience: Patience
    allow_unsafe_code: AllowUnsafe
    trust: Trusted


Provider = Annotated[
    ProviderName | None, option(MODEL, "Who judges.  [judge.provider, else the run's provider]")
]
Problems = Annotated[
    int,
    option(
        RUN, "Problems to judge answers of, out of train and dev.", min=1, max=100_000, metavar="N"
    ),
]
Folder = Annotated[
    Path | None,
    option(
        OUTPUT,
        "The check's directory; an existing one is continued.  [runs/judge-check--...]",
        "--run-dir",
        metavar="DIR",
    ),
]


@app.command("check")
@spread
def check(
    provider: Provider = None,
    model: Model = None,
    problems: Problems = 12,
    run_dir: Folder = None,
    dry_run: Annotated[
        bool, flag(OUTPUT, "Print calls and worst-case dollars; ask nothing.", "--dry-run")
    ] = False,
    verbose: Annotated[
        bool, flag(OUTPUT, "One line per problem, and tracebacks.", "--verbose")
    ] = False,
    as_json: Json = False,
    **flags: Unpack[Asked],
) -> int:
    """Ask the configured judge about answers that the task's own tests have scored.

    Each problem's answers are shown in an order and in its reverse, each twice. Test problems stay
    unseen. Exit codes: 0 whatever is found, 1 failed, 2 bad usage, 3 stopped at the budget, 4
    the server stayed away, 130 interrupted.
    """
    config = asked_of(config_from(**flags), provider, model)
    if dry_run:
        from orchestry.cli.console import Notes
        from orchestry.engine.judge_forecast import forecast

        found = forecast(config, problems, Notes(console(stderr=True)))
        typer.echo(found.model_dump_json() if as_json else _forecast(found))
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
    from orchestry.report.text import counted

    cap = "no budget" if found.budget_usd is None else f"of the budget of ${found.budget_usd:g}"
    problems, calls = counted(found.problems, "problem"), counted(found.calls, "call")
    return (
        f"judge check of {found.provider}/{found.model} on {found.task}: {problems}\n"
        + fitted(
            f"{calls}, {found.most_calls} if every answer needs a repair; about "
            f"{found.input_tokens:,} tokens in"
        )
        + f"\nat most ${found.worst_usd:.4f}, {cap}"
    )
