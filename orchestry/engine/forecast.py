"""The dry run of weights and policies that learn: memory, time and dollars of the machine.

Memory is computed from sizes (backends/local/fits.py). Time comes from a short measurement of the
real weights on this machine or, for a GPU that isn't here, from its data sheet and from the one GPU
that was measured. Scoring, loading and a judge's answers are left out.
"""

from __future__ import annotations

import resource
import sys
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from orchestry.backends.local.backend import LocalBackend
from orchestry.backends.local.fits import Crew, Work, in_gb, memory, on_gpu_without_bfloat16
from orchestry.backends.local.model import device_of, in_half
from orchestry.backends.local.sizes import MAX_ROWS, crewed, on_disk, shape_of
from orchestry.core.errors import ConfigError, reason
from orchestry.core.gpus import Gpu, gpu_like, gpu_named
from orchestry.core.learning import LearnConfig
from orchestry.core.machine import computes_bfloat16, cores, memory_gb, processor
from orchestry.core.types import Frozen
from orchestry.engine.arena import Arena
from orchestry.engine.estimate import Estimate
from orchestry.engine.learners import load_learner
from orchestry.engine.plan import Plan
from orchestry.models.gguf import gguf_named
from orchestry.task.guard import count_stages

_LAYER_S, _SHARE = 0.00023, 0.087
"""Seconds per layer of a decoding step beyond those of reading the weights, and the share of a
GPU's 16-bit operations that prompts and learning reach. Both from the one GPU that was measured
(docs/benchmarks.md, "A team of two on a GPU"): an H200 took 7.0 ms a step for 28 layers and 3.1 GB
of weights, and 0.72 s to learn from 4 rows of 2,584 tokens."""
_LARGEST_CPU = 2_000_000_000
"""Numbers in the layers of weights that a CPU is measured with."""
_LARGE = 300_000_000
"""From how many on a processor gains by bfloat16."""
_PPO_S = 1.0
"""Seconds that backend ppo is measured for, after its first batch."""


class Forecast(Frozen):
    """What the machine has to do; `--json` prints it as `machine`."""

    device: str
    memory_gb: dict[str, float] | None
    """Units of 1e9 bytes, by what they are for; None where the model's sizes are not known."""
    free_gb: float | None
    """Memory of the device that is free, or that the named GPU has; None where it is not known."""
    seconds: float | None
    seconds_from: Literal["measured", "table"] | None
    why: str = ""
    """Why something is not known, or not measured."""
    faster: str = ""
    """What would take less time here."""
    usd_per_hour: float | None = None
    usd: float | None = None
    """What the device costs for that time."""
    price_from: str = ""

    @property
    def fits(self) -> bool | None:
        """Whether the memory is enough; None where that is not known."""
        if self.memory_gb is None or self.free_gb is None:
            return None
        return self.memory_gb["total"] <= self.free_gb


@dataclass(frozen=True, slots=True)
class Device:
    """Where it is computed."""

    name: str
    free_gb: float | None
    on_gpu: bool
    row: Gpu | None = None
    """Of the table, if that has it."""


@dataclass(frozen=True, slots=True)
class _Tokens:
    """What a run computes in all."""

    prompts: float
    """Distinct ones, for drawing."""
    drawn: float
    learned: float
    """In the gradient's passes of one epoch, prompts among them."""
    steps: float
    """Decoding steps, each of which gives all rows a token."""


def here(device: str) -> Device:
    """This machine's GPU, or its processor. Raises ConfigError for a missing device."""
    place = device_of(device)
    if place.type != "cuda":
        many = f"{cores()} core{'s' if cores() > 1 else ''}"
        return Device(f"{processor()}, {many}", memory_gb(), on_gpu=False)
    import torch

    name, (free, total) = torch.cuda.get_device_name(place), torch.cuda.mem_get_info(place)
    return Device(name, free / 1e9, True, gpu_like(name, total / 1e9))


def named(gpu: str) -> Device:
    """A GPU of the table; raises ConfigError for another."""
    row = gpu_named(gpu)
    return Device(row.name, row.memory_gb, on_gpu=True, row=row)


def forecast(
    plan: Plan,
    found: Estimate,
    gpu: str | None,
    usd_per_hour: float | None,
    note: Callable[[str], None],
) -> Forecast:
    """Of a run of backend local. `gpu`: one of core/gpus.py, instead of this machine.

    Weights that are not on this machine are not fetched: then the time is the table's of the GPU
    that is here, and not known without one. Raises ConfigError for an unknown GPU.
    """
    learn = plan.config.learn
    device = named(gpu) if gpu else here(learn.device)
    if device.row and not device.row.bfloat16:
        learn = on_gpu_without_bfloat16(learn)
    works, (crews, unknown) = _works(plan, found), _crews(plan)
    models = {one.model for one in _backend(plan).drawn(plan.task).values()}
    why = "" if gpu else unmeasured(models, learn, crews, works, device)
    needed = memory(crews, learn, works, device.on_gpu) if crews else None
    tokens, seconds = _tokens(plan, found), None
    source: Literal["measured", "table"] = "table" if gpu or why else "measured"
    if source == "measured":
        seconds = _measured(plan, works, tokens, note)
    elif crews and device.row:
        seconds = _by_table(crews, device.row, tokens, works[0], learn.epochs)
    return Forecast(
        device=device.name,
        memory_gb=in_gb(needed) if needed else None,
        free_gb=device.free_gb,
        seconds=seconds,
        seconds_from=None if seconds is None else source,
        why="; ".join(filter(None, (why, unknown))),
        faster=_faster(learn, crews, device),
        **_price(device.row, usd_per_hour, seconds),
    )


def _faster(learn: LearnConfig, crews: Sequence[Crew], device: Device) -> str:
    large = sum(crew.shape.computing for crew in crews) >= _LARGE
    if device.on_gpu or learn.dtype != "auto" or not (large and computes_bfloat16()):
        return ""
    return "this processor knows bfloat16: --set learn.dtype=bfloat16 takes less time and memory"


def _price(row: Gpu | None, given: float | None, seconds: float | None) -> dict[str, Any]:
    rate = row.usd if given is None and row else given
    source = "--gpu-price" if given is not None else row.price_from if row else ""
    usd = None if rate is None or seconds is None else rate * seconds / 3600
    return {"usd_per_hour": rate, "usd": usd, "price_from": source}


def _crews(plan: Plan) -> tuple[list[Crew], str]:
    """The copies of bases, and why their sizes are not known."""
    team = _backend(plan).drawn(plan.task)
    try:
        return [
            Crew(shape_of(next(iter(mine.values())).model), len(mine))
            for mine in crewed(team, plan.config.learn)
        ], ""
    except ConfigError as error:
        return [], reason(error)


def _backend(plan: Plan) -> LocalBackend:
    assert isinstance(plan.backend, LocalBackend)
    return plan.backend


def unmeasured(
    models: Collection[str],
    learn: LearnConfig,
    crews: Sequence[Crew],
    works: Sequence[Work],
    device: Device,
) -> str:
    """Why these weights' pace can't be measured here; '' if it can."""
    half = in_half(learn.dtype, learn.device)
    absent = sorted(model for model in models if not _loads(model, half))
    needed = memory(crews, learn, works, device.on_gpu).total / 1e9 if crews else 0.0
    size = sum(crew.shape.computing for crew in crews)
    reasons = {
        "a vLLM server draws the answers": learn.vllm_url is not None,
        f"{', '.join(absent)} is not on this machine": bool(absent),
        "it does not fit into memory": device.free_gb is not None and needed > device.free_gb,
        "a model of this size takes a CPU many minutes": size > _LARGEST_CPU and not device.on_gpu,
    }
    why = next((why for why, applies in reasons.items() if applies), None)
    return f"the time is not measured here: {why}" if why else ""


def _loads(model: str, half: bool) -> bool:
    """Whether a base loads without network. A GGUF file that is here is converted for that."""
    weights = gguf_named(model)
    return on_disk(model, half) is not None or bool(weights and weights.path.is_file())


def _stages(plan: Plan) -> int:
    return count_stages(plan.task, plan.problems[0])


def _works(plan: Plan, found: Estimate) -> list[Work]:
    """The first stage, whose samples share their prompt, and later ones, where each has its own."""
    learn, task = plan.config.learn, plan.task
    team, block = _backend(plan).drawn(task), min(learn.every, plan.config.episodes)
    means = [row.input_tokens / row.calls for row in found.usage if row.agent in team and row.calls]
    prompt = round(max(means, default=1.0))
    answer = max(member.max_tokens for member in team.values())
    acting = len(task.to_act(task.reset(plan.problems[0], 0)))
    rows = block * learn.samples * acting
    first = Work(prompt, answer, rows, learn.samples, block)
    later = Work(prompt, answer, rows, 1, block * learn.samples)
    return [first, later] if _stages(plan) > 1 else [first]


def _tokens(plan: Plan, found: Estimate) -> _Tokens:
    learn, stages, asked = plan.config.learn, _stages(plan), plan.config.episodes
    rows = [row for row in found.usage if row.provider == plan.backend.provider.name]
    # Samples share the prompt of the first stage alone.
    share = (1 + (stages - 1) * learn.samples) / (stages * learn.samples)
    prompts = sum(row.input_tokens for row in rows) * share
    drawn = sum(row.output_tokens for row in rows)
    played = asked / (asked + plan.backend.dev_plays)
    learned = (prompts + drawn) * played if learn.enabled else 0.0
    longest = max(one.max_tokens for one in _backend(plan).drawn(plan.task).values())
    calls = sum(row.calls for row in rows)
    at_once = max(1, min(MAX_ROWS, _works(plan, found)[0].rows))
    return _Tokens(prompts, drawn, learned, calls / at_once * longest)


def _measured(
    plan: Plan, works: Sequence[Work], tokens: _Tokens, note: Callable[[str], None]
) -> float:
    """Seconds of the run at this machine's pace."""
    from orchestry.backends.local.pace import measure

    note("drawing and learning once, to measure how fast this machine is")
    config = plan.config
    pace = measure(_backend(plan).drawn(plan.task), config.learn, works[0], config.seed)
    return (
        tokens.prompts * pace.prompt_s
        + tokens.drawn * pace.drawn_s
        + tokens.learned * pace.learned_s  # of all epochs together
    )


def _by_table(crews: Sequence[Crew], gpu: Gpu, tokens: _Tokens, work: Work, epochs: int) -> float:
    """Seconds on a GPU that isn't here. A step reads all weights and the rows' keys and values; a
    token of a prompt takes 2 operations per number, and one that is learned from 4, since the
    base's own weights get no gradient."""
    shape = max((crew.shape for crew in crews), key=lambda one: one.computing)
    cached = min(MAX_ROWS, work.rows) * (work.prompt + work.answer / 2) * 2 * shape.keys
    read = 2 * (shape.computing + shape.embedding + cached * shape.layers)
    step_s = shape.layers * _LAYER_S + read / gpu.bandwidth
    operations = shape.computing * (2 * tokens.prompts + 4 * tokens.learned * epochs)
    return tokens.steps * step_s + operations / (gpu.flops * _SHARE)


def ppo_forecast(
    found: Arena, steps: int, usd_per_hour: float | None, note: Callable[[str], None]
) -> Forecast:
    """Of a run of backend ppo, from a measurement of about a second, in this process."""
    import torch

    settings, device = found.config.ppo, here(found.config.ppo.device)
    before = torch.get_num_threads()
    torch.set_num_threads(settings.threads)
    try:
        learner = load_learner(found, note)
        learner.iterate(steps)  # what is compiled once
        first, begun = learner.steps, time.perf_counter()
        while (took := time.perf_counter() - begun) < _PPO_S:
            learner.iterate(steps)
        pace = (learner.steps - first) / took
        learner.close()
    finally:
        torch.set_num_threads(before)
    unit = 1 if sys.platform == "darwin" else 1024
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * unit / 1e9
    alone = "" if found.config.ranks == 1 else "the time is that of one process alone"
    return Forecast(
        device=device.name,
        memory_gb={"total": round(peak, 3)},
        free_gb=memory_gb(),
        seconds=steps / pace,
        seconds_from="measured",
        why=alone,
        **_price(device.row, usd_per_hour, steps / pace),
    )
