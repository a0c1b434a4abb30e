"""`orchestry sweep`: searches settings, each trial a run of its own."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import BUDGET, ON, OUTPUT, RUN, Json, Trusted, option, trusting
from orchestry.core.errors import OrchestryError

if TYPE_CHECKING:
    from orchestry.engine.trust import Trust
    from orchestry.ext.sweep.report import Found
    from orchestry.ext.sweep.settings import SweepConfig

_GiveUp = Annotated[
    str | None,
    option(
        RUN,
        "A folder of a shared study that is lost for good: its open trials fail, and what was "
        "reserved for it counts as spent.",
        metavar="HOST-ID",
    ),
]
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
    on: Annotated[
        str | None,
        option(
            RUN,
            "Where runs go, and how many trials at once; instead of `executor` in the file.  "
            "[local, one]",
            metavar=ON,
        ),
    ] = None,
    give_up: _GiveUp = None,
    trust: Trusted = False,
    as_json: Json = False,
) -> int:
    """Search settings with Optuna: each trial is a run, pruned by its learning curve.

    The file names the run, the keys to try and how many trials; see docs/sweeps.md. The same
    command goes on after an interrupt. At the end it writes a report, and best.yaml for
    `orchestry run --config`.
    """
    import shlex
    from itertools import chain

    from orchestry.cli.show import EXIT_CODES
    from orchestry.ext.sweep.settings import read_sweep

    given = {"trials": trials, "budget_usd": budget, "executor": on}
    config = read_sweep(file, {key: value for key, value in given.items() if value is not None})
    _check(config, file, trusting(trust), budget)
    _check_servers(config, file, trust, on)
    place = folder or Path("sweeps") / file.stem
    options = {"--dir": folder, "--trials": trials, "--budget": budget, "--on": on}
    typed = [("--config", str(file))]
    typed += [(name, str(value)) for name, value in options.items() if value is not None]
    command = shlex.join(["orchestry", "sweep", *chain.from_iterable(typed)])
    reason, found, paths = _swept(config, place, command, trust=trust, give_up=give_up)
    _report(place, reason, found, paths, as_json)
    return EXIT_CODES[reason]


def swept(config: SweepConfig, place: Path, where: Path, trust: bool) -> Found:
    """Plays a sweep that Python describes, or goes on with it, and writes its report. `where`: the
    run whose config it has. Raises OrchestryError after trials that failed in a row."""
    _check(config, where, trust, config.budget_usd)
    command = f"orchestry.load_run({str(where)!r}).sweep(..., {str(place)!r})"
    reason, found, _ = _swept(config, place, command, trust=trust)
    if reason == "failed":
        why = found.trials[-1]["why"] if found.trials else "no trial ended"
        raise OrchestryError(f"the sweep in {place} was given up, since trials failed: {why}")
    return found


def _swept(
    config: SweepConfig, place: Path, command: str, *, trust: bool, give_up: str | None = None
) -> tuple[str, Found, list[Path]]:
    """Plays it and writes its report: why it ended, what came out, and the report's files."""
    from functools import partial

    from orchestry.cli.console import say
    from orchestry.cli.screen import console
    from orchestry.ext.sweep.report import read_sweep, write_report
    from orchestry.ext.sweep.sweep import Sweep

    note = partial(say, console(stderr=True))
    reason = Sweep(config, place, note, trust=trust, confirmed=True, give_up=give_up).play()
    found = read_sweep(place)
    return reason, found, write_report(found, command)


def _report(place: Path, reason: str, found: Found, paths: Sequence[Path], as_json: bool) -> None:
    """Shows what came out."""
    from orchestry.ext.sweep.report import sentences

    if as_json:
        best = found.whole[0] if found.whole else None
        plain = {"folder": str(place), "stopped": reason, "trials": len(found.trials), "best": best}
        typer.echo(json.dumps({**plain, "usd": found.usd, "says": sentences(found)}))
        return
    for sentence in sentences(found):
        typer.echo(sentence)
    for path in paths:
        typer.echo(str(path))


def _check(config: SweepConfig, file: Path, trust: Trust, budget: float | None) -> None:
    """Raises ConfigError if a trial would use other people's code or servers unconfirmed, or if the
    file's cap is above the default and not confirmed."""
    from orchestry.core.config import validate
    from orchestry.core.resolve import merge
    from orchestry.engine.trust import check_trust
    from orchestry.ext.sweep.sweep import corners, raw_config

    cap = {"budget": {"usd": config.budget_usd}}
    for _, settings in corners(config):
        own = validate(merge(raw_config(config, settings), cap))
        check_trust(own, file, trust, {} if budget is None else cap)


def _check_servers(config: SweepConfig, file: Path, trust: bool, on: str | None) -> None:
    """Raises ConfigError if the file names other people's clusters or databases unconfirmed."""
    from orchestry.core.executor import On
    from orchestry.engine.trust import check_server
    from orchestry.ext.sweep.study import host_of

    if on is None and (address := On.of(config.executor).address):
        shown = f"executor {address} (runs would be started there)"
        check_server(shown, address, file, trusting(trust))
    if config.storage and (host := host_of(config.storage)):
        shown = f"storage {config.storage} (settings and results would be sent there)"
        check_server(shown, host, file, trusting(trust))
