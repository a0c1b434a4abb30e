"""`orchestry watch`: the report's page of runs that go on."""

from __future__ import annotations

import threading
from contextlib import suppress
from pathlib import Path
from typing import Annotated

import typer

from orchestry.cli.groups import App
from orchestry.cli.options import OUTPUT, flag, option, run_argument, run_folder

app = App()


@app.command("watch")
def _command(
    runs: Annotated[
        list[Path] | None,
        run_argument("RUN", "Runs' directories, or `last`.  [last]"),
    ] = None,
    port: Annotated[
        int | None,
        option(OUTPUT, "Port of the page.  [a free one]", metavar="N", min=1, max=65535),
    ] = None,
    browser: Annotated[
        bool, flag(OUTPUT, "Open the page in this machine's browser.", "--open")
    ] = False,
) -> None:
    """Show runs in a browser while they go on.

    The page is that of `orchestry report`, kept up to date: what a run does now, its rewards,
    dollars, behaviours and weights, and each episode's tree as it ends. It is read from the run
    directories alone, so the runs may be another terminal's, and may have ended. Only this machine
    can open it, at the printed address; from elsewhere forward the port, such as
    `ssh -L 8000:127.0.0.1:8000 HOST` beside `--port 8000`. Ctrl-C ends it.
    """
    from orchestry.report.serve import Watched, serving

    watched = Watched(runs or [run_folder("last")])
    with suppress(KeyboardInterrupt), serving(watched, port or 0) as address:
        typer.echo(address)
        typer.echo("The page is kept up to date until Ctrl-C.", err=True)
        if browser:
            typer.launch(address)
        threading.Event().wait()
    typer.echo("The page is no longer kept up to date.", err=True)
