"""`orchestry sweep`: searches settings, each trial a run of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import BUDGET, OUTPUT, RUN, Json, Trusted, option, trusting

if TYPE_CHECKING:
    from orchestry.core.sweep import SweepConfig

app = App()


@app.command("sweep")
def _command(
    file: Annotated[Path, option(RUN, "The sweep's YAML file.", "--config", metavar="FILE")],
    folder: Annotated[
        Path | None,
        option(OUTPUT, "The sweep's folder.  [sweeps/NAME of the file]", "--dir", metavar="DIR"),
    ] = None,
    trials: Annotated[
        int | None, option(RUN, "Instead of `trials` in the file.", min=1, metavar="N")
    ] = None,
    budget: Annotated[
        float | None,
        option(BUDGET, "Instead of `budget_usd` in the file: over all runs.", metavar="USD"),
    ] = None,
    trust: Trusted = False,
    as_json: Json = False,
) -> int:
    """Search settings with Optuna: each trial is a run, pruned by its learning curve.

    The file names the run, the keys to try and how many trials; see docs/sweeps.md. The same
    command goes on after an interrupt; given in a second terminal, it plays beside the first. At
    the end it writes a report, and best.yaml for `orchestry run --config`.
    """
    import shlex

    from orchestry.cli.console import say
    from orchestry.cli.screen import console
    from orchestry.cli.show import EXIT_CODES
    from orchestry.core.sweep import read_sweep
    from orchestry.engine.sweep import Sweep
    from orchestry.report.sweep import read_sweep as read_found
    from orchestry.report.sweep import sentences, write_report

    errors = console(stderr=True)
    config = read_sweep(file)
    given = {"trials": trials, "budget_usd": budget}
    config = config.model_copy(update={k: v for k, v in given.items() if v is not None})
    _check(config, file, trust)
    place = folder or Path("sweeps") / file.stem
    sweep = Sweep(config, place, lambda text: say(errors, text))
    reason = sweep.play()
    command = shlex.join(["orchestry", "sweep", "--config", str(file)])
    found = read_found(place)
    paths = write_report(found, command)
    if as_json:
        best = found.whole[0] if found.whole else None
        plain = {"folder": str(place), "stopped": reason, "trials": len(found.trials), "best": best}
        typer.echo(json.dumps({**plain, "usd": found.usd, "says": sentences(found)}))
    else:
        for sentence in sentences(found):
            typer.echo(sentence)
        for path in paths:
            typer.echo(str(path))
    return EXIT_CODES[reason]


def _check(config: SweepConfig, file: Path, trust: bool) -> None:
    """Raises ConfigError if a trial would use other people's code or servers unconfirmed."""
    from orchestry.engine.sweep import corners, trial_config
    from orchestry.engine.trust import check_trust

    for _, settings in corners(config):
        check_trust(trial_config(config, settings), file, trusting(trust), {})
