"""`orchestry run` and `orchestry resume`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

from orchestry.cli.groups import App
from orchestry.cli.options import (
    BUDGET,
    OUTPUT,
    RUN,
    DryRun,
    Json,
    Patience,
    RunDir,
    RunFlags,
    RunFolder,
    RunName,
    ShowBest,
    TaskPath,
    Trusted,
    Verbose,
    check_read,
    config_from,
    flag,
    option,
    preset_file,
    settings,
    spread,
    trusting,
)

if TYPE_CHECKING:
    from orchestry.core.config import RunConfig

app = App()
_Gpu = Annotated[
    str | None,
    option(
        OUTPUT,
        "With --dry-run of backend local: memory, time and dollars on that GPU, such as l4 or "
        "a100, instead of this machine.",
        metavar="NAME",
    ),
]
_GpuPrice = Annotated[
    float | None,
    option(
        OUTPUT,
        "With --dry-run: dollars per hour of the machine, instead of the table's.",
        metavar="USD",
        min=0,
        max=10_000,
    ),
]


@app.command("run")
@spread
def _run(
    run_dir: RunDir = None,
    run_name: RunName = None,
    dry_run: DryRun = False,
    gpu: _Gpu = None,
    gpu_price: _GpuPrice = None,
    show_best: ShowBest = False,
    verbose: Verbose = False,
    as_json: Json = False,
    **flags: Unpack[RunFlags],
) -> int:
    """Search or train on a task; writes a run directory.

    A judge breaks ties in the reward (in code_collaboration only with `judge.enabled=true`), if the
    model can judge. Behaviours are learned from the episodes; those that pass a test enter the
    prompts. The keys `judge.*`, `credit.*` and `behaviors.*` set this up: see docs/learning.md.
    `--dry-run` shows what they cost. Switch them off with `judge.enabled=false` and
    `behaviors.enabled=false`.

    docs/cli.md explains every config key; `--set key=value` sets any of them.

    Exit codes: 0 done, 1 failed, 2 bad usage, 3 stopped at the budget, 4 stopped because the
    server stayed away, 130 interrupted.
    """
    config = config_from(**flags)
    check_read(config.backend, RunFlags(), show_best)
    run_dir = run_dir if run_name is None else named(run_name, run_dir)
    _check_rented(config, gpu, gpu_price, dry_run=dry_run)
    if dry_run:
        from orchestry.cli.dry_run import show, show_recipe, show_steps

        if config.recipe.steps:
            show_recipe(config, as_json=as_json)
            return 0
        if config.backend == "ppo":
            show_steps(config, as_json=as_json, usd_per_hour=gpu_price)
        else:
            show(config, run_dir, as_json=as_json, rented=(gpu, gpu_price))
        return 0
    from orchestry.cli.show import finish_recipe, finish_run
    from orchestry.cli.watch import watching
    from orchestry.engine.run import train

    with watching(verbose=verbose) as observer:
        if config.recipe.steps and not (run_dir and (run_dir / "config.yaml").exists()):  # refused
            from orchestry.cli.dry_run import tell_recipe

            file = flags.get("file")
            tell_recipe(config, preset_file(file) if file else None, observer.note)
        found = train(config, run_dir, observer)
    if config.recipe.steps:
        return finish_recipe(found, as_json=as_json)
    return finish_run(found, show_best=show_best, as_json=as_json)


def _check_rented(config: RunConfig, gpu: str | None, usd: float | None, *, dry_run: bool) -> None:
    """Raises ConfigError for --gpu and --gpu-price where nothing would read them."""
    from orchestry.core.errors import ConfigError

    if gpu is None and usd is None:
        return
    if not dry_run:
        raise ConfigError(
            "--gpu and --gpu-price are for estimates: add --dry-run, or leave them out"
        )
    if config.backend == "api" or config.recipe.steps:
        what = "a recipe" if config.recipe.steps else "backend api, which needs no GPU"
        raise ConfigError(f"--gpu and --gpu-price are not for {what}: leave them out")
    if gpu is not None and config.backend == "ppo":
        raise ConfigError(
            "--gpu is for backend local: ppo's time is measured on this machine, so leave it out"
        )


def named(name: str, run_dir: Path | None) -> Path:
    """The directory of a run's name. Raises ConfigError for a path, and beside --run-dir."""
    from orchestry.core.errors import ConfigError
    from orchestry.core.files import is_name

    if run_dir is not None:
        raise ConfigError("--run-name and --run-dir both say where the run lies: give one")
    if not is_name(name):
        raise ConfigError(f"--run-name {name!r} is no name: for a path there is --run-dir")
    return Path("runs") / name


@app.command("resume")
def _resume(
    run: RunFolder,
    budget: Annotated[
        float | None, option(BUDGET, "A new hard cap for the whole run.", metavar="USD")
    ] = None,
    episodes: Annotated[
        int | None, option(RUN, "A new number of episodes in all.", metavar="N")
    ] = None,
    sets: Annotated[
        list[str] | None,
        option(
            RUN,
            "A setting that a resume may change, such as learn.learning_rate; may be repeated.",
            "--set",
            metavar="A.B=C",
        ),
    ] = None,
    accept: Annotated[
        bool,
        flag(
            RUN,
            "Continue although config.yaml, the task or the base changed, or the journal lost "
            "its end.",
            "--accept-changes",
        ),
    ] = False,
    task_path: TaskPath = None,
    trust: Trusted = False,
    patience: Patience = None,
    show_best: ShowBest = False,
    verbose: Verbose = False,
    as_json: Json = False,
) -> int:
    """Continue a run that was stopped or killed.

    Answers that had arrived are not paid for again. The cap holds over all parts of the run.
    """
    from orchestry.cli.show import finish_recipe, finish_run
    from orchestry.cli.watch import watching
    from orchestry.engine.run import resume
    from orchestry.store.recipes import recipe_in
    from orchestry.store.run import load_run

    flags = RunFlags(
        sets=sets, budget=budget, patience=patience, episodes=episodes, task_path=task_path
    )
    if not recipe_in(run) and load_run(run).neural:
        check_read("ppo", flags, show_best)
    with watching(verbose=verbose) as observer:
        resumed = resume(run, settings(flags), observer, trust=trusting(trust), accept=accept)
    if recipe_in(run):
        return finish_recipe(resumed, as_json=as_json)
    return finish_run(resumed, show_best=show_best, as_json=as_json)
