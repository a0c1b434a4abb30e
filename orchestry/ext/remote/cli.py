"""`orchestry remote`: runs on a machine of the user's, over ssh and rsync."""

from __future__ import annotations

import json
import os
import re
import shlex
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypedDict, Unpack, cast

import typer
from typer.core import TyperGroup
from typer.main import get_command

from orchestry.cli.groups import App
from orchestry.cli.options import OUTPUT, RUN, Json, RunFlags, config_from, flag, option, spread
from orchestry.cli.screen import console, fitted
from orchestry.core.errors import ConfigError, LockedError, OrchestryError
from orchestry.core.files import is_name

if TYPE_CHECKING:
    from orchestry.ext.remote.host import Report
    from orchestry.ext.remote.remote import Each, Host

CONNECTION, MACHINE = "Connection", "Machine"
WAIT_S = 20.0
"""Seconds between two looks of `monitor --wait`."""
PATIENCE = 30
"""So many looks in a row may fail."""
app = App("Run on a machine of yours, such as a rented GPU, over ssh and rsync.")

_Host = Annotated[
    str,
    typer.Argument(metavar="HOST", help="USER@HOST, or a name of ~/.ssh/config or ./remote.yaml."),
]
_Run = Annotated[str, typer.Argument(metavar="RUN", help="A run's name there.")]
_Keys = Annotated[
    list[str] | None,
    option(
        RUN,
        "Variable of your environment for the run's, such as ANTHROPIC_API_KEY. It passes ssh's "
        "stdin, and is written nowhere. May be repeated.",
        "--send-key",
        metavar="NAME",
    ),
]


class Ssh(TypedDict, total=False):
    """How to connect; None means not given."""

    port: Annotated[
        int | None,
        option(CONNECTION, "Of the ssh server.", "--port", "-p", min=1, max=65535, metavar="N"),
    ]
    ssh_option: Annotated[
        list[str] | None,
        option(
            CONNECTION,
            "As `ssh -o` takes it, such as IdentityFile=PATH; may be repeated.",
            "--ssh-option",
            metavar="KEY=VALUE",
        ),
    ]


def _connect(name: str, flags: Ssh) -> Host:
    from orchestry.ext.remote.remote import connect

    return connect(name, flags.get("ssh_option") or (), flags.get("port"))


@app.command("setup")
@spread
def _setup(
    host: _Host,
    extra: Annotated[
        list[str] | None,
        option(
            MACHINE, "Such as ppo, local, anthropic; may be repeated.", "--extra", metavar="NAME"
        ),
    ] = None,
    python: Annotated[
        str | None,
        option(MACHINE, "The Python there.  [python3, or a newer one]", metavar="PATH"),
    ] = None,
    system_site_packages: Annotated[
        bool,
        flag(
            MACHINE,
            "Use what that Python has installed, such as the torch of a GPU image.",
            "--system-site-packages",
        ),
    ] = False,
    **flags: Unpack[Ssh],
) -> int:
    """Install this orchestry on a machine, and check it.

    It makes a virtual environment in the host's folder, packs the orchestry that you are running
    (a checkout too) and installs it there with pip, then runs `orchestry doctor`. Repeat it after a
    break, or to add an extra: what is there is kept.
    """
    from orchestry.ext.remote.remote import set_up

    found = _connect(host, flags)
    typer.echo(f"setting up {found.address}, folder {found.folder}", err=True)
    set_up(found, extra or (), python, system_site_packages, typer.echo)
    typer.echo(
        f"{host} is ready: {shlex.join(['orchestry', 'remote', 'run', host])} -- ARGS starts a run"
    )
    return 0


@app.command("run")
@spread
def _run(
    host: _Host,
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGS", help="What `orchestry run` takes, after `--`."),
    ] = None,
    send_key: _Keys = None,
    **flags: Unpack[Ssh],
) -> int:
    """Start a run there that outlives the connection.

    The config is made and checked here. The task's folder and the files that the config names are
    sent into the run's folder there. Keys of your environment are not, unless `--send-key` names
    them.
    """
    from orchestry.engine.run import new_run_folder
    from orchestry.ext.remote.runs import begin

    given = _parsed("run", args or ())
    if given["run_dir"]:
        raise ConfigError("--run-dir is not for a run on a host: --run-name names it")
    if given["dry_run"] or given["gpu"] or given["gpu_price"] is not None:
        raise ConfigError("a dry run needs no host: `orchestry run --dry-run`")
    config = config_from(**cast(RunFlags, {k: given[k] for k in RunFlags.__annotations__}))
    kind = "+".join(config.recipe.steps) or config.backend
    name = _named(given["run_name"] or new_run_folder(f"{config.task}--{kind}").name)
    keys = _values(send_key or ())
    asked = config.provider
    if (asked.name, asked.model) == ("auto", None) and config.backend == "api" and not keys:
        typer.echo(
            "· provider auto is the embedded model there, unless you --send-key a vendor's",
            err=True,
        )
    found = _connect(host, flags)
    with _progress("sending") as each:
        report = begin(found, config, name, _output(given), keys, each)
    return _started(found, report)


@app.command("resume")
@spread
def _resume(
    host: _Host,
    run: _Run,
    args: Annotated[
        list[str] | None,
        typer.Argument(metavar="-- ARGS", help="What `orchestry resume` takes, after `--`."),
    ] = None,
    send_key: _Keys = None,
    **flags: Unpack[Ssh],
) -> int:
    """Continue a run there that was stopped or killed."""
    from orchestry.ext.remote.runs import go_on

    if _parsed("resume", [*(args or ()), "."])["task_path"]:
        raise ConfigError("--task-path is not for a run on a host: its task was sent with it")
    found = _connect(host, flags)
    return _started(found, go_on(found, _named(run), args or (), _values(send_key or ())))


@app.command("monitor")
@spread
def _monitor(
    host: _Host,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run's name there.  [all]")
    ] = None,
    wait: Annotated[
        bool, flag(OUTPUT, "Return only when nothing of it runs any more.", "--wait")
    ] = False,
    page: Annotated[
        bool, flag(OUTPUT, "Show the page of RUN's report here, until Ctrl-C.", "--page")
    ] = False,
    tensorboard: Annotated[
        bool, flag(OUTPUT, "Show TensorBoard here, until Ctrl-C.", "--tensorboard")
    ] = False,
    local_port: Annotated[
        int | None,
        option(OUTPUT, "Where it is shown here.  [a free port]", min=1, max=65535, metavar="N"),
    ] = None,
    as_json: Json = False,
    **flags: Unpack[Ssh],
) -> int:
    """Show runs there: state, log, checkpoints, GPUs, hours and cost.

    Prices are in ./remote.yaml. A reminder comes if nothing runs there any more, or after
    `remind_after_hours`.
    """
    from orchestry.ext.remote.remote import reminders, usd
    from orchestry.ext.remote.runs import known

    found, names = _connect(host, flags), [] if run is None else [_named(run)]
    state = known(found, names)
    if page or tensorboard:
        return _serve(found, "page" if page else "tensorboard", run, state["runs"], local_port)
    missed = 0
    while wait and any(one["running"] for one in state["runs"]):
        time.sleep(WAIT_S)
        try:
            state, missed = known(found, names), 0
        except OrchestryError:  # a network may fail for a while
            if (missed := missed + 1) > PATIENCE:
                raise
    every = state if not names else known(found, [])
    notes = reminders(found, every)
    for one in state["runs"]:
        one["usd"] = usd(found, one["seconds"])
    if as_json:
        typer.echo(json.dumps({**state, "reminders": notes}))
        return 0
    _show(found, state)
    for note in notes:
        typer.echo(fitted(f"! {note}", hang=2))
    return 0


@app.command("sync")
@spread
def _sync(
    host: _Host,
    run: Annotated[
        str | None, typer.Argument(metavar="[RUN]", help="A run's name there.  [all]")
    ] = None,
    into: Annotated[
        Path, option(OUTPUT, "Folder for the runs here.", "--into", metavar="DIR")
    ] = Path("runs"),
    **flags: Unpack[Ssh],
) -> int:
    """Copy runs here, or what is new of them.

    A copy that broke off is continued. Nothing is deleted here, and no other run is overwritten. A
    run may be copied while it runs; what is here can be reported and resumed at any time.
    """
    from orchestry.ext.remote.remote import reminders
    from orchestry.ext.remote.runs import known, pull

    found = _connect(host, flags)
    state = known(found, [] if run is None else [_named(run)])
    failed = None
    for one in state["runs"]:
        try:
            with _progress(f"copying {one['run']}") as each:
                place = pull(found, one["run"], into, each)
            typer.echo(f"{place} {_state(one)}")
        except (ConfigError, LockedError) as error:  # of this run: the others are copied
            typer.echo(f"· {one['run']} is not copied: {error}", err=True)
            failed = error
    for note in reminders(found, state if run is None else known(found, [])):
        typer.echo(fitted(f"! {note}", hang=2), err=True)
    return failed.exit_code if failed else 0


@app.command("stop")
@spread
def _stop(host: _Host, run: _Run, **flags: Unpack[Ssh]) -> int:
    """Interrupt a run there, as Ctrl-C does: it can be resumed. The machine goes on, and costs."""
    from orchestry.ext.remote.remote import reminders
    from orchestry.ext.remote.runs import known, stop

    found = _connect(host, flags)
    report = stop(found, _named(run))
    if report.get("refused"):
        typer.echo(f"{run} does not run: {_state(report)}")
    elif report["running"]:
        raise OrchestryError(f"{run} is still ending, with calls that are paid for: stop it again")
    else:
        again = shlex.join(["orchestry", "remote", "resume", host, run])
        typer.echo(f"{run} has stopped: {_state(report)}. `{again}` continues it")
    for note in reminders(found, known(found, [])):
        typer.echo(fitted(f"! {note}", hang=2), err=True)
    return 0


# --- arguments ------------------------------------------------------------------------------------


def _parsed(name: str, args: Sequence[str]) -> dict[str, Any]:
    """What `orchestry run` or `orchestry resume` makes of these arguments; raises as they do."""
    from orchestry.cli.run import app as commands

    command = cast(TyperGroup, get_command(commands)).commands[name]
    return command.make_context(f"orchestry {name}", [*args]).params


def _output(given: Mapping[str, Any]) -> list[str]:
    """The flags of the run that only change what it prints."""
    named = {"verbose": "--verbose", "show_best": "--show-best", "as_json": "--json"}
    return [text for key, text in named.items() if given[key]]


def _named(name: str) -> str:
    """The name, if it can be a folder's; raises ConfigError."""
    if not is_name(name):
        raise ConfigError(f"a run's name is that of its folder, without slashes, not {name!r}")
    return name


def _values(names: Sequence[str]) -> dict[str, str]:
    """The values of variables here; raises ConfigError for one that is not set."""
    for name in names:
        if not re.fullmatch(r"[A-Za-z_]\w*", name, re.ASCII):
            raise ConfigError("--send-key takes a variable's name, such as ANTHROPIC_API_KEY")
        if not os.environ.get(name):
            raise ConfigError(f"--send-key {name}: it is not set here: export {name}=...")
    return {name: os.environ[name] for name in names}


# --- what is shown --------------------------------------------------------------------------------


@contextmanager
def _progress(what: str) -> Iterator[Each]:
    """Rsync's progress, on a terminal: one line of bytes, share and speed that is redrawn."""
    from rich.text import Text

    with console(stderr=True).status(Text(what)) as status:
        yield lambda line: status.update(
            Text(f"{what}: {' '.join(line.split()[:3])}", no_wrap=True, overflow="ellipsis")
        )


def _started(host: Host, report: Report) -> int:
    name = report["run"]
    if not report["running"] and report["code"]:
        raise OrchestryError(
            f"{name} ended on {host.name} with exit code {report['code']}: {report['last']}"
        )
    look = shlex.join(["orchestry", "remote", "monitor", host.name, name])
    typer.echo(f"{name} {_state(report)} on {host.name}; `{look}` shows it")
    return 0


def _state(report: Report) -> str:
    from orchestry.report.text import duration

    said = "runs" if report["running"] else "was killed, with no exit code"
    if report["code"] is not None:
        said = "is done" if report["code"] == 0 else f"ended with exit code {report['code']}"
    return f"{said} ({duration(report['seconds'])})"


def _show(host: Host, state: Mapping[str, Any]) -> None:
    from orchestry.ext.remote.remote import usd
    from orchestry.report.text import duration

    since = state["now"] - state["setup"]["since"]
    price = usd(host, since)
    cost = "no price in remote.yaml" if price is None else f"${price:.2f} so far"
    typer.echo(f"{host.name}: set up {duration(since)} ago, {cost}")
    for gpu in state["gpus"]:
        used, total = (_gib(gpu[f"memory.{key}"]) for key in ("used", "total"))
        busy = gpu["utilization.gpu"]
        typer.echo(f"GPU {gpu['name']}: {busy} % busy, {used} of {total} GiB")
    if state["gpus_fault"]:
        typer.echo(fitted(f"! nvidia-smi: {state['gpus_fault']}", hang=2))
    for one in state["runs"]:
        cost = "" if one["usd"] is None else f", ${one['usd']:.2f}"
        typer.echo(f"\n{one['run']} {_state(one)}{cost}")
        if (learned := one["learned"]) is not None:
            ago = duration(state["now"] - learned["at"])
            typer.echo(f"  learned: {_learned(learned)}, {ago} ago")
        if one["last"]:
            typer.echo(fitted(f"  log: {one['last']}", hang=4))


def _gib(mib: str) -> str:
    """Of nvidia-smi's MiB; as it is where a GPU has no memory of its own: [N/A]."""
    try:
        return f"{float(mib) / 1024:.1f}"
    except ValueError:
        return mib


def _learned(learned: Mapping[str, Any]) -> str:
    parts = [f"update {learned['update']}"]
    if learned["steps"] is not None:
        parts.append(f"{learned['steps']:,} steps")
    if learned["checkpoint"]:
        parts.append(str(learned["checkpoint"]))
    return ", ".join(parts)


def _serve(
    host: Host, what: str, name: str | None, runs: Sequence[Report], port: int | None
) -> int:
    """Shows a server of the host's on a port of loopback here, until Ctrl-C."""
    from orchestry.core.probe import free_port
    from orchestry.ext.remote.remote import forward

    if not runs:
        raise ConfigError(f"{host.name} has no run yet: there is nothing to show")
    name = name or max(runs, key=lambda run: run["started"])["run"]
    with (
        suppress(KeyboardInterrupt),
        forward(host, what, name, port or free_port()) as (url, ended),
    ):
        typer.echo(f"{what} of {name}: {url} (Ctrl-C ends)")
        ended()
        raise OrchestryError(f"{host.name}: the connection ended: repeat this to see more")
    return 0
