"""`orchestry distil`: what others answered becomes a local team's weights."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Unpack, cast

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import (
    LESSONS,
    MODEL,
    OUTPUT,
    RUN,
    Json,
    LessonFlags,
    RunFlags,
    Seed,
    TaskPath,
    Trusted,
    flag,
    option,
    run_folder,
    run_folders,
    settings,
    spread,
    task_names,
    trusting,
)

if TYPE_CHECKING:
    from orchestry.cli.console import Console
    from orchestry.ext.distil.distil import Distilled
    from orchestry.ext.distil.examples import Examples, How

LEARNING = "How it is learned"
app = App()


class DistilFlags(LessonFlags, total=False):
    """Flags of what is learned, and how; None means not given."""

    teacher: Annotated[
        str | None,
        option(
            LESSONS,
            "Who plays games to learn from: a scripted player of the task, or the folder of a run "
            "of backend ppo.",
            metavar="NAME|RUN",
        ),
    ]
    games: Annotated[
        int | None, option(LESSONS, "Games that the teacher plays.  [16]", metavar="N")
    ]
    epochs: Annotated[
        int | None, option(LEARNING, "Passes over the examples, at most.  [4]", metavar="N")
    ]
    learning_rate: Annotated[
        float | None,
        option(LEARNING, "AdamW's learning rate.  [0.001, with dpo 0.0001]", metavar="RATE"),
    ]
    batch: Annotated[
        int | None, option(LEARNING, "Examples of each agent per step.  [4]", metavar="N")
    ]
    held_out: Annotated[
        float | None,
        option(
            LEARNING,
            "Share of the problems that is held out; an agent stops when their loss rises.  [0.1]",
            metavar="SHARE",
        ),
    ]
    beta: Annotated[
        float | None,
        option(LEARNING, "dpo: how closely the team is held to where it began.  [0.1]"),
    ]


@app.command("distil")
@spread
def _command(
    runs: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="RUN",
            help="Runs on train, of backend api or local.",
            parser=run_folder,
            autocompletion=run_folders,
        ),
    ] = None,
    into: Annotated[Path | None, option(OUTPUT, "A new folder.  [runs/...]", metavar="DIR")] = None,
    task: Annotated[
        str | None,
        option(RUN, "The task.  [the runs']", metavar="NAME", autocompletion=task_names),
    ] = None,
    task_path: TaskPath = None,
    seed: Seed = None,
    sets: Annotated[
        list[str] | None,
        option(
            RUN,
            "A setting of the team, such as learn.rank=8; may be repeated.",
            "--set",
            metavar="A.B=C",
        ),
    ] = None,
    model: Annotated[
        str | None,
        option(MODEL, "The base.  [a local run's, or as `run --backend local`]", metavar="M"),
    ] = None,
    trust: Trusted = False,
    dry_run: Annotated[
        bool, flag(OUTPUT, "Print the number of examples and tokens; learn nothing.", "--dry-run")
    ] = False,
    verbose: Annotated[bool, flag(OUTPUT, "Tracebacks.", "--verbose")] = False,
    as_json: Json = False,
    **flags: Unpack[DistilFlags],
) -> None:
    """Fine-tune a local team on the best answers of runs, on gold answers, or on a teacher's play.

    Each agent's LoRA adapter learns the agent's own answers in the winning trajectories. The folder
    that is written holds a checkpoint, for `run --backend local --set learn.from=...`; `evaluate`,
    `ask` and `export` take the folder itself. `--set learn.rank=8` and the like set up the
    adapters.
    """
    from orchestry.cli.console import Notes
    from orchestry.cli.screen import console
    from orchestry.ext.distil.distil import distil
    from orchestry.ext.distil.examples import examples

    where = console(stderr=True)
    note, how = Notes(where), cast("How", {k: v for k, v in flags.items() if v is not None})
    config = settings(RunFlags(task=task, task_path=task_path, seed=seed, sets=sets, model=model))
    common: dict[str, Any] = {"config": config, "note": note, "trust": trusting(trust)}
    if dry_run:
        _estimate(examples(runs or (), **common, **how), note, as_json=as_json)
        return
    with _steps(where) as progress:
        done = distil(runs or (), into, progress=progress, **common, **how)
    typer.echo(json.dumps(_plain(done)) if as_json else _told(done))


@contextmanager
def _steps(where: Console) -> Iterator[Callable[[int, int], None]]:
    """A bar of steps on a terminal; a file gets the notes alone."""
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TimeRemainingColumn

    with Progress(
        BarColumn(bar_width=10),
        MofNCompleteColumn(),
        TimeRemainingColumn(),
        console=where,
        disable=not where.is_terminal,
        transient=True,
    ) as bar:
        task = bar.add_task("steps", total=None, visible=False)

        def show(done: int, steps: int) -> None:
            bar.update(task, completed=done, total=steps, visible=True)

        yield show


def _estimate(found: Examples, note: Callable[[str], None], *, as_json: bool) -> None:
    """Prints what would be learned."""
    from orchestry.ext.distil.distil import counts

    rows = counts(found, note)
    if as_json:
        typer.echo(json.dumps({"task": found.setup.config.task, "agents": rows}))
        return
    for role, row in rows.items():
        typer.echo(
            f"{role}: {row['examples']} examples, {row['tokens']:,} tokens to learn and "
            f"{row['prompt_tokens']:,} of prompts; {row['held_out']} held out"
        )


def _plain(found: Distilled) -> dict[str, Any]:
    return {
        "run_dir": str(found.run),
        "checkpoint": str(found.folder),
        "agents": {
            role: {
                "examples": found.examples[role],
                "held_out_loss": (losses := found.held_out[role])
                and {"before": losses[0], "after": losses[1]},
            }
            for role in found.agents
        },
    }


def _told(found: Distilled) -> str:
    from orchestry.store.checkpoints import goes_on

    lines = list[str]()
    for role in found.agents:
        losses = found.held_out[role]
        how = f", held-out loss {losses[0]:.3f} -> {losses[1]:.3f}" if losses else ""
        lines.append(f"{role}: {found.examples[role]} examples{how}")
    return "\n".join(
        [
            *lines,
            f"  {found.run}: `orchestry evaluate {found.run}` measures the team, and",
            f"  `{goes_on(found.run)}` trains it on",
        ]
    )
