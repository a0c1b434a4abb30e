"""`orchestry baselines`: list and run the baselines."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Unpack

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import (
    EVALUATION,
    OUTPUT,
    DryRun,
    Json,
    RunFlags,
    Verbose,
    config_from,
    option,
    run_folder,
    run_folders,
    settings,
    spread,
    trusting,
)
from orchestry.cli.screen import fitted
from orchestry.core.choices import Split

if TYPE_CHECKING:
    from orchestry.core.config import RunConfig
    from orchestry.engine.evaluate import Baselines
    from orchestry.store.records import Summary

OF_RUN = ("budget", "patience", "episodes", "allow_unsafe_code", "sets", "task_path")
"""Flags that may be combined with --of; everything else comes from the run."""
app = App("List and run the baselines that a team is compared with.")


@app.command("list")
def _list() -> None:
    """Name the baselines, one per line."""
    from orchestry.task.arrangements import BASELINES

    for name, text in BASELINES.items():
        typer.echo(fitted(f"{name:12}{text}", hang=12))


def _names(incomplete: str) -> Iterator[tuple[str, str]]:
    """Completions of NAME."""
    from orchestry.task.arrangements import BASELINES

    yield from BASELINES.items()


@app.command("run")
@spread
def _run(
    ctx: typer.Context,
    names: Annotated[
        list[str] | None,
        typer.Argument(metavar="NAME", help="Baselines, or `all`.", autocompletion=_names),
    ] = None,
    source: Annotated[
        Path | None,
        option(
            EVALUATION,
            "Use that run's task, model and seeds; write the results into it.",
            "--of",
            metavar="RUN",
            parser=run_folder,
            autocompletion=run_folders,
        ),
    ] = None,
    split: Annotated[Split, option(EVALUATION, "Problems of this split.")] = "test",
    samples: Annotated[
        int, option(EVALUATION, "Trajectories per problem.", min=1, max=64, metavar="N")
    ] = 10,
    out: Annotated[
        Path | None, option(OUTPUT, "Folder of the results.  [runs/...]", metavar="DIR")
    ] = None,
    dry_run: DryRun = False,
    verbose: Verbose = False,
    as_json: Json = False,
    **flags: Unpack[RunFlags],
) -> int:
    """Play baselines on held-out problems: NAMEs of `orchestry baselines list`, or all.

    Baselines are untrained and have no judge. Flags set the model, seeds, cache and limits, as in
    `orchestry run`. With `--of RUN` they come from that run, and `orchestry report` then shows the
    baselines beside it. Every problem is played once; `--episodes N` takes the first N. `--budget`
    caps all baselines together. A second call continues where the first stopped.
    """
    from orchestry.engine.evaluate import Baselines, fitting
    from orchestry.task.arrangements import BASELINES

    if not names:
        ctx.fail(f"name baselines, or all: {', '.join(BASELINES)}")
    if source and out:
        ctx.fail("--of RUN keeps the results in the run: leave out --out")
    config = _of_run(source, flags) if source else config_from(**flags)
    wanted = fitting(config, _told) if "all" in names else tuple(dict.fromkeys(names))
    asked = Baselines(config, wanted, split, samples, flags["episodes"])
    if dry_run:
        _estimate(asked, source, as_json=as_json)
        return 0
    return _play(asked, _root(config, source, out), verbose=verbose, as_json=as_json)


def _root(config: RunConfig, source: Path | None, out: Path | None) -> Path:
    from orchestry.core.errors import ConfigError
    from orchestry.engine.run import new_run_folder
    from orchestry.store.measurements import BASELINES

    if out and out.exists() and not out.is_dir():
        raise ConfigError(f"{out} is not a directory: choose another --out")
    if source:
        return source / BASELINES
    return out or new_run_folder(f"{config.task}--baselines--{config.backend}")


def _of_run(source: Path, flags: RunFlags) -> RunConfig:
    """The run's config with the allowed flags applied; raises ConfigError for other flags."""
    from orchestry.core.config import validate
    from orchestry.core.errors import ConfigError
    from orchestry.engine.evaluate import differing
    from orchestry.engine.trust import of_run
    from orchestry.store.run import check_texts, load_run

    given = [name for name, value in flags.items() if value is not None]  # 0 is a seed
    if others := [name for name in given if name not in (*OF_RUN, "trust")]:
        names = ", ".join(f"--{'config' if name == 'file' else name}" for name in others)
        raise ConfigError(
            f"--of {source} takes task, model and seeds from that run: leave out "
            f"{names.replace('_', '-')}"
        )
    today = settings({**flags, "episodes": None})  # the run's number of episodes stays
    check_texts(run := load_run(source))
    config = of_run(run.folder, today, trusting(flags["trust"]), _note)
    for key, before, now in differing(validate(run.config), config):
        raise ConfigError(
            f"--of {source} compares baselines with that run, which has {key}={before!r}, but "
            f"{now!r} was given: leave out --set {key}, or play without --of"
        )
    return config


def _told(text: str) -> None:
    typer.echo(text, err=True)


def _note(text: str) -> None:
    typer.echo(f"· {text}", err=True)


def _play(asked: Baselines, root: Path, *, verbose: bool, as_json: bool) -> int:
    from orchestry.cli.evaluate import shown
    from orchestry.cli.show import EXIT_CODES
    from orchestry.cli.watch import watching
    from orchestry.report.measures import Measures, measured

    found: dict[str, Measures | None] = {}
    code = 0
    with watching(verbose=verbose) as observer:
        for name, run in zip(asked.names, asked.play(root, observer), strict=False):
            found[name], code = measured(run), EXIT_CODES[run.summary.stopped]
            if code:
                typer.echo(_unfinished(name, run.summary, asked.names[len(found) :]), err=True)
    if as_json:
        plain = {name: one and one.plain() for name, one in found.items()}
        typer.echo(json.dumps({"folder": str(root), "split": asked.split, "baselines": plain}))
    else:
        shown(found, f"{asked.config.task}, {asked.split}: {root}")
    return code


def _unfinished(name: str, summary: Summary, left: Sequence[str]) -> str:
    """Why the last baseline is incomplete, and how to continue it."""
    why = "with a larger --budget " if summary.stopped == "budget" else ""
    rest = f", {', '.join(left)} not begun" if left else ""
    return (
        f"{name} has played {summary.episodes} of {summary.episodes_asked} problems{rest}: the "
        f"same command {why}continues"
    )


def _estimate(asked: Baselines, source: Path | None, *, as_json: bool) -> None:
    """Prints what each baseline would cost; sends and writes nothing."""
    from orchestry.cli.dry_run import RUNS, plain
    from orchestry.engine.estimate import estimate

    runs = [RUNS, *([source.resolve().parent] if source else [])]
    found = {name: estimate(config, runs=runs) for name, config in asked.configs().items()}
    if as_json:
        typer.echo(json.dumps({name: plain(one) for name, one in found.items()}))
        return
    for name, one in found.items():
        usd = one.cost_usd
        top = "none" if usd.max is None else f"{usd.max:.4f}"
        said = (
            f"{name:12}{one.calls:,} calls, {one.output_tokens:,} tokens out, dollars: expected "
            f"{usd.expected:.4f}, p95 {usd.p95:.4f}, hard maximum {top}"
        )
        typer.echo(fitted(said, hang=12))
