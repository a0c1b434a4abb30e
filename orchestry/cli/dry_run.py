"""`--dry-run`: the estimate, as a table or as JSON."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import Any

import typer
from rich.table import Table

from orchestry.backends.local.settings import on_a_gpu
from orchestry.cli.console import Notes
from orchestry.cli.screen import console
from orchestry.core.config import RunConfig, resolve
from orchestry.core.errors import OrchestryError, reason
from orchestry.core.gpus import GPUS
from orchestry.engine.estimate import Estimate, Figures, estimate
from orchestry.engine.forecast import Forecast, forecast, ppo_forecast
from orchestry.engine.regime import recipe
from orchestry.engine.run import prepare
from orchestry.report.text import counted, duration

Rented = tuple[str | None, float | None]
"""The values of --gpu and --gpu-price."""
RUNS = Path("runs")
"""Where runs lie that nobody gave a folder."""


def show(
    config: RunConfig,
    run_dir: Path | None,
    *,
    as_json: bool,
    foretell: Callable[..., Estimate] = estimate,
    noun: str = "episode",
    rented: Rented = (None, None),
) -> None:
    """Prints what the work would cost, counted in `noun`; makes no call and writes no file.

    Earlier runs are looked for where runs lie, and beside the folder of this one. For a run of
    backend local it also says what the machine, or the GPU that is `rented`, has to do.
    """
    notes, folders = Notes(console(stderr=True)), [RUNS, *([run_dir.parent] if run_dir else [])]
    if rented[0]:
        config = on_a_gpu(config)
    found = foretell(config, note=notes, runs=folders)
    machine = None
    if config.backend == "local" and foretell is estimate:
        plan = prepare(config, lambda text: None, need_key=False)
        machine = forecast(plan, found, *rented, note=notes)
    notes.close()
    if as_json:
        own = {"machine": machine.model_dump(mode="json")} if machine else {}
        typer.echo(json.dumps(plain(found) | own))
        return
    where, usd = console(), found.cost_usd
    title = f"{found.task}, {counted(found.episodes, noun)} on {found.provider}/{found.model}"
    where.print(table(found, title))
    top = "none" if usd.max is None else f"{usd.max:.4f}"
    where.print(
        f"\ndollars: p5 {usd.p5:.4f}   expected {usd.expected:.4f}   p95 {usd.p95:.4f}   "
        f"hard maximum {top}"
    )
    where.print(_remark(found, config.budget.usd), style="dim")
    for line in _embedded(found):
        where.print(line, highlight=False)
    if machine:
        where.print("\n".join(lines(machine)), highlight=False)


def _embedded(found: Estimate) -> Iterator[str]:
    """What the embedded models take, and whether they fit."""
    from orchestry.cli.models import row, told
    from orchestry.core.machine import memory_gb
    from orchestry.models.gguf import gguf

    for one in found.by_provider:
        if one.provider == "embedded" and (known := gguf(one.model).known):
            yield f"{known.name}: {told(row(known, memory_gb()))}"


def show_recipe(config: RunConfig, *, as_json: bool) -> None:
    """Prints what each stage of a recipe and each measurement would cost, and their sum; of the
    first stage that learns by gradients also what this machine has to do."""
    notes = Notes(console(stderr=True))
    parts = recipe().forecast(config)
    found = [(name, estimate(one, note=notes, runs=[RUNS])) for name, one in parts]
    learns = next((n for n, (_, one) in enumerate(parts) if one.backend == "local"), None)
    machine = None if learns is None else _machine(parts[learns][1], found[learns][1], notes)
    notes.close()
    cap = config.budget.usd
    expected = sum(one.cost_usd.expected for _, one in found)
    if as_json:
        rows = [{"part": name, **plain(one)} for name, one in found]
        own = {"machine": machine.model_dump(mode="json")} if machine else {}
        typer.echo(json.dumps({"parts": rows, "expected_usd": expected, "budget_usd": cap} | own))
        return
    out = Table(title=f"{config.task}, {'+'.join(config.recipe.steps)}", box=None, pad_edge=False)
    out.add_column("part")
    for heading in ("calls", "tokens in", "tokens out", "dollars"):
        out.add_column(heading, justify="right")
    for name, one in found:
        tokens = f"{one.input_tokens:,}", f"{one.output_tokens:,}"
        out.add_row(name, f"{one.calls:,}", *tokens, f"{one.cost_usd.expected:.4f}")
    out.add_section()
    calls = sum(one.calls for _, one in found)
    out.add_row("all", f"{calls:,}", "", "", f"{expected:.4f}")
    console().print(out)
    most = "no maximum: there is no budget" if cap is None else f"hard maximum {cap:.4f}"
    console().print(f"\ndollars: expected {expected:.4f}, {most}. Weights answer free of charge.")
    if machine and learns is not None:
        console().print(
            "\n".join([f"{parts[learns][0]}:", *lines(machine, rentable=False)]), highlight=False
        )


def tell_recipe(config: RunConfig, file: Path | None, note: Callable[[str], None]) -> None:
    """Before a recipe is played: what its file says of it, and what the first stage that learns by
    gradients takes here. Weights that have a known source are fetched for that."""
    from orchestry.backends.local.model import in_half, loadable
    from orchestry.models.gguf import gguf_named

    for line in of_itself(config, file):
        note(line)
    parts = recipe().forecast(config)
    learns = next(((name, one) for name, one in parts if one.backend == "local"), None)
    if learns is None:
        return
    name, one = learns
    try:
        if gguf_named(one.provider.model or ""):
            half = in_half(one.learn.dtype, one.learn.device)
            loadable(one.provider.model or "", half=half)
        machine = _machine(one, estimate(one, runs=[RUNS]), note)
    except OrchestryError as error:  # an earlier stage may not need what is missing here
        note(f"stage {name}: its time can't be measured here: {reason(error)}")
        return
    for line in lines(machine, rentable=False):
        note(f"stage {name}, {line}")


def of_itself(config: RunConfig, file: Path | None) -> list[str]:
    """What a config's file says of itself, in the lines at its top that begin with ##; nothing
    where a flag has changed its steps or its model."""
    if file is None:
        return []
    own, text = resolve([file]), file.read_text(encoding="utf-8")
    pairs = (
        (own.recipe.steps, config.recipe.steps),
        (own.provider.model, config.provider.model),
    )
    if any(its and its != now for its, now in pairs):
        return []
    top = takewhile(lambda line: line[:1] == "#", text.splitlines())
    return [line.removeprefix("##").strip() for line in top if line[:3] == "## "]


def _machine(config: RunConfig, found: Estimate, note: Callable[[str], None]) -> Forecast:
    """What a stage of a recipe takes of this machine."""
    plan = prepare(config, lambda text: None, need_key=False)
    return forecast(plan, found, None, None, note=note)


def show_steps(config: RunConfig, *, as_json: bool, usd_per_hour: float | None = None) -> None:
    """Prints what a run of backend ppo would play, and how long that takes here, by a measurement
    of about a second; makes all checks that cost nothing."""
    from orchestry.engine.neural import checked

    notes = Notes(console(stderr=True))
    found = checked(config, notes)
    batch = config.ppo.games * config.ppo.horizon
    batches = -(-config.ppo.steps // batch)
    machine = ppo_forecast(found, batches * batch, usd_per_hour, notes)
    notes.close()
    if as_json:
        free = dict.fromkeys(("calls", "input_tokens", "output_tokens"), 0)
        usd = dict.fromkeys(("p5", "expected", "p95", "max"), 0.0)
        own = {"steps": batches * batch, "batches": batches, "machine": machine.model_dump()}
        typer.echo(json.dumps({**free, "cost_usd": usd, **own}))
        return
    each = "batch" if batches == 1 else "batches"
    typer.echo(f"{config.task}: {batches * batch:,} steps, in {batches:,} {each} of {batch:,}")
    typer.echo("Nothing is paid: backend ppo asks no model.")
    typer.echo("\n".join(lines(machine)))


def lines(found: Forecast, *, rentable: bool = True) -> list[str]:
    """Memory, time and dollars of the machine, a line each. `rentable`: whether the command takes
    --gpu, for a GPU elsewhere."""
    said = [f"device: {found.device}"]
    if found.memory_gb:
        parts = ", ".join(f"{name} {gb:.2g}" for name, gb in found.memory_gb.items() if gb)
        parts = parts.rpartition(", total")[0]
        fits = {True: "fits", False: "does not fit", None: "free memory unknown"}[found.fits]
        room = "" if found.free_gb is None else f" into {found.free_gb:.3g} GB"
        detail = f" ({parts})" if parts else ""
        said.append(f"memory: about {found.memory_gb['total']:.2g} GB{detail}; {fits}{room}")
    if found.seconds is not None:
        how = {
            "measured": "by a short measurement on this machine",
            "table": "an estimate from data sheets and one measured GPU, never checked on this one",
            None: "",
        }[found.seconds_from]
        said.append(f"time: about {spoken(found.seconds)} ({how}), without scoring and loading")
    if found.usd_per_hour is None and found.device in (gpu.name for gpu in GPUS):
        said.append(f"GPU dollars: no price of a {found.device} is known; give one by --gpu-price")
    if found.usd is not None and found.usd_per_hour is not None:
        rate = f"{found.usd_per_hour:.2f} dollars per hour ({found.price_from})"
        said.append(f"GPU dollars: about {found.usd:.2f}, at {rate}")
    said += filter(None, (found.why, found.faster))
    if found.seconds is None and rentable:
        said.append("--gpu NAME, such as l4 or a100, estimates memory, time and dollars of a GPU")
    return said


def spoken(seconds: float) -> str:
    """A time in the two units that count."""
    minutes, rest = divmod(round(seconds), 60)
    hours, minutes = divmod(minutes, 60)
    if hours:
        return f"{hours:,} h {minutes} min"
    return f"{minutes} min {rest} s" if minutes else f"{rest} s"


def plain(found: Estimate) -> dict[str, Any]:
    """As JSON takes it; sums of shares without the noise in their last digits."""
    data = found.model_dump(mode="json")
    for row in (*data["usage"], *data["by_provider"]):
        row |= {key: round(row[key], 2) for key in ("calls", "input_tokens", "output_tokens")}
    return data


def _remark(found: Estimate, cap: float | None) -> str:
    """What the figures rest on."""
    paced = f"It takes {duration(found.paced_s)} or more (pace)." if found.paced_s else ""
    if found.cost_usd.max == 0 and not any(row.usd for row in found.usage):
        said = ["Every model that it asks is free.", _power(found, cap), paced]
    else:
        said = [_kind(found, cap), _known(found), _power(found, cap), paced]
    return " ".join(filter(None, said))


def _power(found: Estimate, cap: float | None) -> str:
    """What the run can learn if the budget does not end it, or its learning, before."""
    if not found.power:
        return ""
    short = cap is not None and found.enough_usd > cap
    return f"Learning{', with that larger budget' if short else ''}: {found.power}."


def _kind(found: Estimate, cap: float | None) -> str:
    """What makes the maximum one, and which budget is enough."""
    top, enough = found.cost_usd.max, f"--budget {found.enough_usd:.2f}"
    if top is None:
        return (
            "There is no maximum without a budget: the run learns, or its answers may decide how "
            "many calls it makes or how long its prompts are, or it is too wide to count. "
            f"{enough} is enough in 95 of 100 cases."
        )
    if cap is None or top < cap:
        return "The maximum takes every answer at its longest and every retry as billed."
    said = "The maximum is the budget: no call is sent that could pass it."
    return said if found.enough_usd <= cap else f"{said} {enough} is enough in 95 of 100 cases."


def _known(found: Estimate) -> str:
    """Where the lengths of answers are from."""
    if not found.earlier_runs:
        return (
            f"No earlier run of {found.model} tells how long its answers are, so the range is wide."
        )
    return f"Lengths of answers are from {counted(found.earlier_runs, 'earlier run')} of the model."


def table(found: Estimate, title: str) -> Table:
    """Expected calls, tokens and dollars by agent and purpose, by provider where there are several,
    and in all."""
    out = Table(title=title, title_justify="left", box=None, padding=(0, 1, 0, 0), pad_edge=False)
    for heading in ("agent", "purpose"):
        out.add_column(heading, overflow="fold")
    for heading in ("calls", "tokens in", "tokens out", "dollars"):
        out.add_column(heading, justify="right", no_wrap=True)
    for row in found.usage:
        out.add_row(row.agent, row.purpose, *_cells(row))
    out.add_section()
    for each in found.by_provider if len(found.by_provider) > 1 else ():
        out.add_row("all", f"{each.provider}/{each.model}", *_cells(each))
    usd = f"{found.cost_usd.expected:.4f}"
    calls, tokens = f"{found.calls:,}", (f"{found.input_tokens:,}", f"{found.output_tokens:,}")
    out.add_row("all", "", calls, *tokens, usd)
    return out


def _cells(row: Figures) -> tuple[str, ...]:
    counts = (row.calls, row.input_tokens, row.output_tokens)
    return (*(f"{count:,.0f}" for count in counts), f"{row.usd:.4f}")
