"""`orchestry judge check`: measures the judge of a config on answers of known scores."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypedDict, Unpack

from orchestry.cli.groups import App
from orchestry.cli.options import (
    MODEL,
    OUTPUT,
    RUN,
    AllowUnsafe,
    Budget,
    Config,
    DryRun,
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
from orchestry.core.choices import ProviderName

if TYPE_CHECKING:
    from orchestry.core.config import RunConfig

app = App("Measure a judge before trusting it.")


class _Flags(TypedDict):
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


_Provider = Annotated[
    ProviderName | None, option(MODEL, "Who judges.  [judge.provider, else the run's provider]")
]
Problems = Annotated[
    int,
    option(RUN, "Number of problems, from train and dev.", min=1, max=100_000, metavar="N"),
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
def _check(
    provider: _Provider = None,
    model: Model = None,
    problems: Problems = 12,
    run_dir: Folder = None,
    dry_run: DryRun = False,
    verbose: Annotated[
        bool, flag(OUTPUT, "One line per problem, and tracebacks.", "--verbose")
    ] = False,
    as_json: Json = False,
    **flags: Unpack[_Flags],
) -> int:
    """Ask the configured judge about answers that the task's own tests have scored.

    Each problem's answers are shown in one order and in its reverse, each twice. Test problems are
    not used. Exit codes: 0 whatever is found, 1 failed, 2 bad usage, 3 stopped at the budget, 4 the
    server stayed away, 130 interrupted.
    """
    config = asked_of(config_from(**flags), provider, model)
    if dry_run:
        from orchestry.cli.dry_run import show
        from orchestry.ext.judge_check.forecast import forecast

        foretell = partial(forecast, problems=problems)
        show(config, run_dir, as_json=as_json, foretell=foretell, noun="problem")
        return 0
    from orchestry.ext.judge_check.check import check_judge as run_check
    from orchestry.ext.judge_check.show import show_check, watching_check

    with watching_check(verbose=verbose) as watch:
        report = run_check(config, problems, run_dir, watch)
    return show_check(report, as_json=as_json)


def asked_of(config: RunConfig, provider: str | None, model: str | None) -> RunConfig:
    """The config with the judge that the flags name; another vendor's settings are dropped."""
    judge = config.judge.provider or config.provider
    if provider is not None and judge.name not in ("auto", provider):
        judge = judge.model_copy(update={"model": None, "base_url": None})
    if provider is not None:
        judge = judge.model_copy(update={"name": provider})
    if model is not None:
        judge = judge.model_copy(update={"model": model})
    return config.model_copy(update={"judge": config.judge.model_copy(update={"provider": judge})})
