"""What `orchestry doctor` says about processor, GPU and the packages that learn, and what fits."""

from __future__ import annotations

import platform
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from orchestry.core.distribution import install

if TYPE_CHECKING:
    from orchestry.backends.local.fits import Work
    from orchestry.core.config import RunConfig

Mark = Literal["ok", "absent", "bad"]
Line = tuple[str, Mark, str, str]
"""Name, mark, what was found, and the fix: a check of doctor."""
_QUERY = ("name", "memory.total", "memory.free", "driver_version", "compute_cap")
_BF16 = 8
"""Compute capability from which a GPU computes in bfloat16 (Ampere)."""
WAYS: dict[str, dict[str, Any]] = {
    "": {},
    "4-bit": {"quantize": "nf4"},
    "gradient checkpointing": {"gradient_checkpointing": True},
    "4-bit, gradient checkpointing": {"quantize": "nf4", "gradient_checkpointing": True},
}
"""Settings of `learn` that save memory; the first are the config's own."""
_LARGEST = 3
"""Models that are named where none was asked for."""
_SMALLER = "lower learn.micro_tokens or sampling.max_tokens, or choose a smaller base"
PROMPT = 512
"""Tokens of a prompt that the estimates assume."""


@dataclass(frozen=True, slots=True)
class Card:
    """An NVIDIA GPU, as its driver tells it."""

    name: str
    total_gb: float
    free_gb: float
    driver: str
    bfloat16: bool


def cards() -> list[Card] | str:
    """This machine's GPUs by nvidia-smi, which needs no torch; or why there are none."""
    from orchestry.core.probe import gpus

    rows, fault = gpus(_QUERY)
    try:
        return [_card(*row.values()) for row in rows] or fault or "no nvidia-smi on PATH"
    except ValueError as error:
        return f"nvidia-smi can't be used: {error}"


def _card(name: str, total: str, free: str, driver: str, capability: str) -> Card:
    able = int(capability.partition(".")[0]) >= _BF16
    return Card(name, int(total) * 2**20 / 1e9, int(free) * 2**20 / 1e9, driver, able)


def hardware(found: list[Card] | str) -> Iterator[Line]:
    """Processor, torch and GPUs."""
    yield _processor()
    able, line = _torch()
    yield line
    if isinstance(found, str):
        if able:  # AMD's, which torch knows under the same name
            yield "gpu", "ok", _by_torch(), ""
        else:
            fix = "backend local computes on the CPU; for a GPU, install NVIDIA's driver"
            yield "gpu", "absent", found, fix
        return
    known = find_spec("torch") is not None  # else torch's own line says what is missing
    for number, card in enumerate(found):
        half = "bfloat16" if card.bfloat16 else "no bfloat16: learn.dtype=auto is float32"
        memory = f"{card.total_gb:.1f} GB, {card.free_gb:.1f} GB free"
        told = f"{card.name}, {memory}, driver {card.driver}, {half}"
        usable = able or not known
        fix = "" if usable else "torch can't use it: install torch's build for its CUDA version"
        yield f"gpu {number}", "ok" if usable else "absent", told, fix


def _processor() -> Line:
    from orchestry.core.machine import cores, lacks_bfloat16, processor

    half = "bfloat16 by its own instructions (learn.dtype=bfloat16 is faster for a large base)"
    if lacks_bfloat16():
        half = "no instructions for bfloat16, so learn.dtype=float32 is faster"
    elif platform.machine().lower() not in ("x86_64", "amd64"):
        half = "bfloat16 is not looked at on this kind of processor"
    return "cpu", "ok", f"{processor()}, cores for this process: {cores()}, {half}", ""


def _torch() -> tuple[bool, Line]:
    """Whether torch can use a GPU, and its line. Imported here alone: it takes seconds."""
    if find_spec("torch") is None:
        return False, ("torch", "absent", "not installed", install("local"))
    try:
        import torch
    except (ImportError, OSError) as error:
        return False, ("torch", "bad", f"can't be imported: {error}", install("local"))
    version: Any = torch.version
    built = (version.cuda and f"CUDA {version.cuda}") or (version.hip and f"ROCm {version.hip}")
    able = torch.cuda.is_available()
    use = "uses a GPU" if able else "sees no GPU"
    return able, ("torch", "ok", f"{torch.__version__}, {built or 'built for CPUs'}, {use}", "")


def _by_torch() -> str:
    import torch

    free, total = torch.cuda.mem_get_info()
    memory = f"{total / 1e9:.1f} GB, {free / 1e9:.1f} GB free"
    half = "bfloat16" if torch.cuda.is_bf16_supported(including_emulation=False) else "no bfloat16"
    return f"{torch.cuda.get_device_name()}, {memory}, {half}"


@dataclass(frozen=True, slots=True)
class Room:
    """Where weights are to fit."""

    free_gb: float | None
    """In units of 1e9 bytes; None: unknown."""
    on_gpu: bool
    bfloat16: bool = True
    here: bool = True
    """Whether it is this machine's."""


def room(gpu: str | None, found: list[Card] | str) -> Room:
    """That of a GPU which the table has, of the first one here, or of this machine. Raises
    ConfigError for an unknown GPU."""
    from orchestry.core.gpus import gpu_named
    from orchestry.core.machine import memory_gb

    if gpu is not None:
        row = gpu_named(gpu)
        return Room(row.memory_gb, True, row.bfloat16, here=False)
    if isinstance(found, str):
        return Room(memory_gb(), False)
    return Room(found[0].free_gb, True, found[0].bfloat16)


def what_fits(config: RunConfig, models: list[str], into: Room) -> Iterator[Line]:
    """Memory of backend local with the config's settings: of each of these models in several ways,
    and its time here where it is fetched and fits; else the largest known ones that fit, in one
    line. Raises ConfigError for a model of unknown sizes."""
    from orchestry.backends.local.sizes import KNOWN, model_named

    agents, learn = _agents(config), config.learn
    settings = f"{agents} agents, group {learn.samples}, {config.sampling.max_tokens} tokens"
    free_gb = into.free_gb
    free = "unknown" if free_gb is None else f"{free_gb:.3g} GB"
    # On a CPU the file of 4-bit weights stays mapped: memory there was never what is computed.
    ways = {name: way for name, way in WAYS.items() if into.on_gpu or "quantize" not in way}
    fit = list[tuple[float, str]]()
    for model in map(model_named, models or KNOWN):
        figures = {name: _needed(config, model, agents, way, into) for name, way in ways.items()}
        for name, gb in figures.items() if models else ():
            fits = free_gb is None or gb["total"] <= free_gb
            parts = ", ".join(f"{part} {one:.2g}" for part, one in gb.items() if part != "total")
            told = f"{model}, {name + ', ' if name else ''}{settings}: about {gb['total']:.2g} GB"
            told += f" of {free} free ({parts})"
            yield "fits", "ok" if fits else "absent", told, "" if fits else _SMALLER
        if models and into.here and (free_gb is None or figures[""]["total"] <= free_gb):
            yield from _time(config, model, agents)
        least, name = min((gb["total"], name) for name, gb in figures.items())
        if free_gb is not None and least <= free_gb:
            way = f" ({name})" if name else ""
            fit.append((least, f"{model.rpartition('/')[2]} {least:.2g} GB{way}"))
    if not models:
        largest = ", ".join(said for _, said in sorted(fit, reverse=True)[:_LARGEST])
        told = f"backend local, {settings}, {free} free; the largest: {largest or 'none'}"
        yield "fits", "ok" if fit else "absent", told, "orchestry doctor --fits MODEL says more"


def learning_gb(model: str) -> float | None:
    """Memory that backend local needs on a CPU, with its own defaults; None if the sizes of the
    model are not known."""
    from orchestry.cli.options import config_from
    from orchestry.core.errors import ConfigError

    config = config_from(backend="local")
    try:
        return _needed(config, model, _agents(config), {}, Room(None, False))["total"]
    except ConfigError:
        return None


def _agents(config: RunConfig) -> int:
    from orchestry.task.registry import load_task

    return len(load_task(config.task, config.task_path, config.weights, config.options).agents)


def _needed(
    config: RunConfig, model: str, agents: int, way: Mapping[str, Any], into: Room
) -> dict[str, float]:
    from orchestry.backends.local.fits import Crew, in_gb, memory, on_gpu_without_bfloat16
    from orchestry.backends.local.sizes import shape_of
    from orchestry.core.config import validate
    from orchestry.core.resolve import merge

    learn = validate(merge(config.plain(), {"learn": way})).learn
    learn = learn if into.bfloat16 else on_gpu_without_bfloat16(learn)
    work = _update(config, agents)
    alone = learn.method == "full" and not learn.shared
    crews = [Crew(shape_of(model), 1)] * agents if alone else [Crew(shape_of(model), agents)]
    return in_gb(memory(crews, learn, [work], into.on_gpu))


def _update(config: RunConfig, agents: int) -> Work:
    """What an update draws, with prompts of PROMPT tokens and answers as long as they may be."""
    from orchestry.backends.local.fits import Work

    learn = config.learn
    rows = learn.every * learn.samples * agents
    return Work(PROMPT, config.sampling.max_tokens, rows, learn.samples, learn.every)


def _time(config: RunConfig, model: str, agents: int) -> Iterator[Line]:
    """How long an update takes, by drawing and learning once with the real weights."""
    from orchestry.backends.local.model import require_installed
    from orchestry.core.errors import ConfigError, OrchestryError, reason

    try:
        require_installed()
    except ConfigError:  # torch's own line says what is missing
        return
    from orchestry.backends.local.fits import Crew
    from orchestry.backends.local.pace import measure
    from orchestry.backends.local.sizes import shape_of
    from orchestry.cli.dry_run import spoken
    from orchestry.core.types import Member
    from orchestry.engine.forecast import here, unmeasured

    learn, work = config.learn, _update(config, agents)
    team = {role: Member(role, "", model, work.answer) for role in map(str, range(agents))}
    crews = [Crew(shape_of(model), agents)]
    if why := unmeasured([model], learn, crews, [work], here(learn.device)):
        yield "time", "absent", why, ""
        return
    try:
        pace = measure(team, learn, work, config.seed)
    except OrchestryError as error:
        yield "time", "absent", f"{model} can't be timed: {reason(error)}", ""
        return
    prompts, drawn = work.rows / work.samples * work.prompt, work.rows * work.answer
    seconds = (prompts + drawn) * pace.learned_s + prompts * pace.prompt_s + drawn * pace.drawn_s
    told = (
        f"{model}: about {spoken(seconds)} per update of {work.groups} problems, if all prompts "
        f"have {work.prompt} tokens and all answers {work.answer} (by a short measurement here)"
    )
    yield "time", "ok", told, ""
