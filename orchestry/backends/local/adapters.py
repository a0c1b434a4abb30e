"""N LoRA adapters on one frozen base; each row of a batch names the adapter it uses.

LoRA as in arXiv 2106.09685, eq. 3: h = W x + (alpha / r) B A x, with A random and B zero at first.
rsLoRA (arXiv 2312.03732) divides alpha by the square root of r.
The base's modules and parameters stay unchanged: forward hooks add the low-rank part. So one copy
of the weights serves all agents, and row -1 is exactly the bare base.

On disk an adapter has peft's format. A third file has digests of its base and its weights: so a
moved base is recognised, and a changed bit is found.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field
from functools import partial
from itertools import groupby
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint

from orchestry.backends.local.model import Base, base_digest, quiet
from orchestry.backends.local.sizes import ATTENTION
from orchestry.backends.local.targets import ALL_LINEAR, check_targets, linear_layers
from orchestry.core.digests import file_digest
from orchestry.core.errors import ConfigError, StoreError, reason
from orchestry.core.files import to_json
from orchestry.core.seeds import derive

_Spans = tuple[tuple[int, int, int | None], ...]
_ALL = -2
"""The key of all adapters' matrices, stacked."""
SHARED = "shared"
"""The folder of the adapter that all agents share."""
_PREFIX = "base_model.model."
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_FACTS = "adapter_digests.json"
_BASE = "base_model_name_or_path"
_PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "use_dora": False,
    "lora_bias": False,
    "bias": "none",
    "fan_in_fan_out": False,
    "alpha_pattern": {},
    "rank_pattern": {},
    "modules_to_save": None,
    "layers_to_transform": None,
}
"""peft features that these adapters do not support."""


@dataclass(frozen=True, slots=True)
class _Kind:
    """Settings that all adapters of a team share."""

    base: str
    """Its name."""
    paths: frozenset[str]
    """Other names of the base."""
    rank: int
    alpha: int
    dropout: float
    targets: tuple[str, ...]
    rslora: bool


@dataclass(frozen=True, slots=True)
class _Site:
    """One linear layer of the base, (in) to (out), with one low-rank part per adapter."""

    name: str
    linear: nn.Linear
    down: tuple[nn.Parameter, ...]
    """A: (r, in) per adapter."""
    up: tuple[nn.Parameter, ...]
    """B: (out, r) per adapter."""


@dataclass(frozen=True, slots=True)
class _Plan:
    """The adapter of each row of a batch."""

    spans: _Spans
    """(adapter, first row, row after the last) in the order of the sorted batch."""
    rows: int | None
    """Rows of the batch; None: any number."""
    order: Tensor | None
    """(R,): sorts the rows by adapter; None: they are sorted already."""
    inverse: Tensor | None
    seed: int
    """Seed of the dropout masks, so that a recomputation in the backward pass draws the same
    ones."""
    own: Tensor | None = None
    """(R, 1, adapters x r): 1 at each row's own part of what all adapters make of it; None: each
    adapter gets its rows."""
    cast: dict[tuple[str, int], tuple[Tensor, Tensor]] = field(default_factory=dict)
    """Pairs in the base's precision, made once for all tokens of this plan."""

    def pair(self, site: _Site, adapter: int, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        """A and B of an adapter in the base's precision, with a gradient if they learn."""
        if torch.is_grad_enabled() or site.down[adapter].dtype == dtype:
            return site.down[adapter].to(dtype), site.up[adapter].to(dtype)
        key = site.name, adapter
        if key not in self.cast:
            self.cast[key] = site.down[adapter].to(dtype), site.up[adapter].to(dtype)
        return self.cast[key]

    def stacked(self, site: _Site, x: Tensor, own: Tensor) -> Tensor:
        """B A x of each row's adapter, (R, 1, out), from all adapters' matrices stacked: more to
        compute, but as few kernels as for one adapter, which counts on a GPU alone."""
        key = site.name, _ALL
        if key not in self.cast:
            used = [self.pair(site, one, x.dtype) for one, _, _ in self.spans if one >= 0]
            downs, ups = zip(*used, strict=True)
            self.cast[key] = torch.cat(downs), torch.cat(ups, dim=1)
        down, up = self.cast[key]
        return functional.linear(functional.linear(x, down) * own, up)


class Adapters:
    """One LoRA adapter per agent, or one for all, on every target linear of a frozen base.

    Weights are trained in at least float32, and used in the base's precision. Dropout on their
    input acts only after `model.train()`. The model runs only inside `rows`; outside it raises
    RuntimeError, because the adapter would be unknown.
    """

    def __init__(
        self,
        base: Base,
        agents: Sequence[str],
        *,
        rank: int = 16,
        alpha: int = 32,
        dropout: float = 0.05,
        targets: Sequence[str] = ATTENTION,
        rslora: bool = False,
        seed: int = 0,
        shared: bool = False,
        beside: bool = False,
    ) -> None:
        """Draws A kaiming-uniform as peft does, from `seed` and the agent's name.

        `beside`: the base wears other adapters already; outside `rows` these then do nothing.

        `targets` are last parts of module names, or ALL_LINEAR. `shared`: all agents train one
        adapter. Raises ConfigError if the base has no such linear layer, or has adapters already.
        """
        if getattr(base.model, "_orchestry_adapters", False) and not beside:
            raise ConfigError(f"the base {base.name} wears adapters already: load it a second time")
        self.base = base
        self.stacks = base.model.device.type == "cuda"
        """Whether rows of one token, of several agents, meet all adapters in one product."""
        self.agents = tuple(agents)
        self.rank, self.alpha, self.dropout = rank, alpha, dropout
        self.rslora, self.shared, self._beside = rslora, shared, beside
        layers = linear_layers(base)
        self.targets = tuple(sorted(layers)) if targets == ALL_LINEAR else tuple(targets)
        check_targets(base, self.targets, layers)
        self._folders = (SHARED,) if shared else tuple(map(folder_of, self.agents))
        base.model.requires_grad_(False)
        self._sites = self._attach(seed)
        self._plan: _Plan | None = None
        self.reseed(seed)

    @property
    def folders(self) -> tuple[str, ...]:
        """Each agent's folder in a checkpoint; the same one if they share an adapter."""
        return self._folders * len(self.agents) if self.shared else self._folders

    @property
    def _kind(self) -> _Kind:
        return _Kind(
            base=self.base.name,
            paths=frozenset([str(self.base.model.name_or_path)]),  # as `orchestry export` names it
            rank=self.rank,
            alpha=self.alpha,
            dropout=self.dropout,
            targets=self.targets,
            rslora=self.rslora,
        )

    @property
    def scaling(self) -> float:
        """The factor of B A x."""
        return self.alpha / (math.sqrt(self.rank) if self.rslora else self.rank)

    def parameters(self, agent: int | None = None) -> list[nn.Parameter]:
        """A and B of one agent, one pair per target in the order of the modules; None: of all
        agents.

        If agents share an adapter, each has the same pairs, and None gives them once.
        """
        numbers = range(len(self._folders)) if agent is None else [self._number(agent)]
        return [
            weight
            for number in numbers
            for site in self._sites
            for weight in (site.down[number], site.up[number])
        ]

    def rows(self, index_R: int | Sequence[int] | Tensor) -> AbstractContextManager[None]:
        """In this context the model's batch row i uses the adapter of agent `index_R[i]`.

        -1 is the bare base; a plain int is for a batch of any size. Gradient checkpointing
        remembers the rows, because its recomputation may run after the context.
        """
        if torch.is_grad_enabled() and self.base.model.training:
            self._remember_rows()
        return _Using(self, self._planned(index_R))

    def reseed(self, seed: int) -> None:
        """From now on dropout masks depend only on `seed` and the number of `rows` calls."""
        self._seed, self._draws = seed, 0

    def save(self, folder: Path) -> None:
        """One folder per agent, named after it, that peft's `from_pretrained` loads."""
        for number, name in enumerate(self._folders):
            weights = {key: weight.detach() for key, weight in self._named(number)}
            _write(folder / name, self._kind, weights)

    def load(self, folder: Path, any_base: bool = False, names: Sequence[str | None] = ()) -> None:
        """Reads files of `save` or peft; after an error no adapter is changed. `names`: each
        agent's folder, where it is another; None: this adapter stays as it is.

        Raises StoreError if a folder can't be read or is damaged, and ConfigError if an adapter has
        another base (compared by content; not compared with `any_base`) or other settings.
        """
        found = {}
        for number, name in enumerate(names or self._folders):
            shapes = {key: tuple(weight.shape) for key, weight in self._named(number)}
            if name is not None:
                found[number] = _read(folder / name, self._kind, shapes, any_base)
        with torch.no_grad():
            for number, tensors in found.items():
                for key, weight in self._named(number):
                    weight.copy_(tensors[key])

    def merged(self, agent: int) -> dict[str, Tensor]:
        """The base's state with the agent's adapter added; the base itself is unchanged.

        Raises ConfigError if the base is quantized, because quantized codes can't be added.
        """
        number = self._number(agent)
        state: dict[str, Tensor] = self.base.model.state_dict()
        for site in self._sites:
            weight = site.linear.weight
            if not weight.is_floating_point():
                raise ConfigError(
                    f"the base {self.base.name} is quantized, so no adapter can be merged into it: "
                    "load it without quantize, or, where its own files are quantized, export the "
                    "adapters without --merge"
                )
            delta = site.up[number].detach() @ site.down[number].detach() * self.scaling
            state[f"{site.name}.weight"] = (weight + delta).to(weight.dtype)
        return state

    def export(self, agent: int, folder: Path) -> None:
        """An ordinary model folder: base with the agent's adapter merged, and the tokenizer."""
        with quiet():
            self.base.model.save_pretrained(folder, state_dict=self.merged(agent))
        self.base.tokenizer.save_pretrained(folder)

    def _attach(self, seed: int) -> tuple[_Site, ...]:
        model = self.base.model
        found = {
            name: module
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and name.rpartition(".")[2] in self.targets
        }
        generators = [torch.Generator().manual_seed(derive(seed, name)) for name in self._folders]
        sites = tuple(self._site(name, linear, generators) for name, linear in found.items())
        self._hooks = [
            site.linear.register_forward_hook(partial(self._join, number))
            for number, site in enumerate(sites)
        ]
        object.__setattr__(model, "_orchestry_adapters", True)
        return sites

    def detach(self) -> None:
        """Leaves the base to other adapters."""
        for hook in self._hooks:
            hook.remove()
        object.__setattr__(self.base.model, "_orchestry_adapters", False)

    def _site(self, name: str, linear: nn.Linear, generators: list[torch.Generator]) -> _Site:
        place: dict[str, Any] = {
            "device": self.base.model.device,
            "dtype": torch.promote_types(self.base.model.dtype, torch.float32),
        }
        downs, ups = [], []
        # Drawn on the CPU, so that every device starts with the same weights.
        for generator in generators:
            drawn = torch.empty(self.rank, linear.in_features)
            nn.init.kaiming_uniform_(drawn, a=math.sqrt(5), generator=generator)
            downs.append(nn.Parameter(drawn.to(**place)))
            ups.append(nn.Parameter(torch.zeros(linear.out_features, self.rank, **place)))
        return _Site(name, linear, tuple(downs), tuple(ups))

    def _number(self, agent: int) -> int:
        """The adapter of an agent; -1 stays -1."""
        if not -1 <= agent < len(self.agents):
            raise IndexError(f"agent {agent} of {len(self.agents)}")
        return min(agent, 0) if self.shared else agent

    def _planned(self, index_R: int | Sequence[int] | Tensor) -> _Plan:
        seed = 0
        if self.dropout and self.base.model.training:
            seed = derive(self._seed, self._draws)
            self._draws += 1
        if isinstance(index_R, int):
            return _Plan(((self._number(index_R), 0, None),), None, None, None, seed)
        given: Iterable[int] = index_R.tolist() if isinstance(index_R, Tensor) else index_R
        numbers = [self._number(agent) for agent in given]
        spans = _spans(numbers)
        if len(spans) == len(set(numbers)):
            return _Plan(spans, len(numbers), None, None, seed, self._own(numbers, spans))
        order = sorted(range(len(numbers)), key=numbers.__getitem__)
        order_R = torch.tensor(order, device=self.base.model.device)
        spans = _spans(sorted(numbers))
        inverse_R = torch.argsort(order_R)
        return _Plan(spans, len(numbers), order_R, inverse_R, seed, self._own(numbers, spans))

    def _own(self, numbers: list[int], spans: _Spans) -> Tensor | None:
        used = [adapter for adapter, _, _ in spans if adapter >= 0]
        if not (self.stacks and used and len(spans) > 1):
            return None
        own = [[float(one == n) for one in used for _ in range(self.rank)] for n in numbers]
        model = self.base.model
        return torch.tensor(own, dtype=model.dtype, device=model.device)[:, None]

    def _join(
        self, number: int, linear: nn.Module, inputs: tuple[Tensor, ...], output: Tensor
    ) -> Tensor | None:
        """The forward hook of one site: adds the low-rank part to the layer's output."""
        plan, x = self._plan, inputs[0]
        if plan is None and self._beside:
            return None
        if plan is None:
            raise RuntimeError("the model ran outside Adapters.rows: rows(-1) is the bare base")
        if plan.rows not in (None, len(x)):
            raise RuntimeError(f"Adapters.rows got {plan.rows} rows for a batch of {len(x)}")
        if all(adapter < 0 for adapter, _, _ in plan.spans):
            return None
        if self.dropout and linear.training:
            x = self._dropped(x, derive(plan.seed, number))
        delta = self._delta(self._sites[number], plan, x)
        return torch.add(output, delta, alpha=self.scaling)

    def _delta(self, site: _Site, plan: _Plan, x: Tensor) -> Tensor:
        """B A x, (R, ..., out), of each row's adapter; zeros for rows without one."""
        if plan.own is not None and x.shape[1] == 1 and not torch.is_grad_enabled():
            return plan.stacked(site, x, plan.own)
        if plan.order is not None:
            x = x.index_select(0, plan.order)
        parts = []
        for adapter, first, end in plan.spans:
            part = x[first:end]
            if adapter < 0:
                parts.append(part.new_zeros(*part.shape[:-1], site.linear.out_features))
                continue
            down, up = plan.pair(site, adapter, x.dtype)
            parts.append(functional.linear(functional.linear(part, down), up))
        delta = parts[0] if len(parts) == 1 else torch.cat(parts)
        return delta if plan.inverse is None else delta.index_select(0, plan.inverse)

    def _dropped(self, x: Tensor, seed: int) -> Tensor:
        generator = torch.Generator(x.device).manual_seed(seed)
        kept = torch.empty_like(x).bernoulli_(1 - self.dropout, generator=generator)
        return x * kept.div_(1 - self.dropout)

    def _remember_rows(self) -> None:
        """Makes checkpointed layers recompute with the plan of their forward pass."""
        for module in self.base.model.modules():
            if getattr(module, "gradient_checkpointing", False):
                wrapped: Any = partial(checkpoint, use_reentrant=False, context_fn=self._contexts)
                module._gradient_checkpointing_func = wrapped

    def _contexts(self) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        """Contexts for a checkpointed layer's forward pass and its recomputation."""
        return nullcontext(), _Using(self, self._plan)

    def _named(self, number: int) -> list[tuple[str, nn.Parameter]]:
        """The weights of an adapter under peft's names."""
        return [
            (f"{_PREFIX}{site.name}.lora_{letter}.weight", weight)
            for site in self._sites
            for letter, weight in (("A", site.down[number]), ("B", site.up[number]))
        ]


class _Using(AbstractContextManager[None]):
    """Adapters with a plan; each recomputation enters it again."""

    def __init__(self, adapters: Adapters, plan: _Plan | None) -> None:
        self._adapters, self._inner = adapters, plan
        self._outer: list[_Plan | None] = []

    def __enter__(self) -> None:
        self._outer.append(self._adapters._plan)
        self._adapters._plan = self._inner

    def __exit__(self, *exc: object) -> None:
        self._adapters._plan = self._outer.pop()


def _spans(numbers: list[int]) -> _Spans:
    """(adapter, first, end) of each run of equal numbers."""
    spans, first = [], 0
    for adapter, run in groupby(numbers):
        end = first + len(list(run))
        spans.append((adapter, first, end))
        first = end
    return tuple(spans)


def folder_of(agent: str) -> str:
    """An agent's name as a folder name that any file system accepts."""
    return quote(agent, safe=" ").replace(".", "%2E")


def _write(folder: Path, kind: _Kind, tensors: Mapping[str, Tensor]) -> None:
    """Saves one adapter in a new folder that peft's `from_pretrained` loads. peft itself takes
    seconds to import."""
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    config = {
        **_PLAIN,
        _BASE: kind.base,
        "task_type": "CAUSAL_LM",
        "inference_mode": True,
        "r": kind.rank,
        "lora_alpha": kind.alpha,
        "lora_dropout": kind.dropout,
        "target_modules": sorted(kind.targets),
        "use_rslora": kind.rslora,
    }
    (folder / _CONFIG).write_text(to_json(config), encoding="utf-8")
    save_file(dict(tensors), folder / _WEIGHTS, metadata={"format": "pt"})
    facts = {"base": base_digest(kind.base), _WEIGHTS: file_digest(folder / _WEIGHTS)}
    (folder / _FACTS).write_text(to_json(facts), encoding="utf-8")


def _read(
    folder: Path, kind: _Kind, shapes: Mapping[str, tuple[int, ...]], any_base: bool = False
) -> dict[str, Tensor]:
    """The tensors of an adapter; `any_base` accepts one that was trained on another base.

    Raises StoreError for damaged or missing files, and ConfigError for an adapter with another base
    or other settings.
    """
    if not (folder / _CONFIG).is_file():
        raise StoreError(_absent(folder))
    config, tensors = _object(folder / _CONFIG), _tensors(folder)
    if not any_base:
        _check_base(folder, config, kind)
    _check_settings(folder, config, kind)
    found = {key: tuple(tensor.shape) for key, tensor in tensors.items()}
    if found != shapes:
        key = min(key for key, _ in found.items() ^ shapes.items())
        raise ConfigError(
            f"the adapter in {folder} does not fit the base {kind.base}: {key} is "
            f"{found.get(key, 'absent')}, expected {shapes.get(key, 'absent')}: name the base that "
            "it was trained on in provider.model, or start from another adapter"
        )
    return tensors


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no keys and values")
    except (OSError, ValueError) as error:
        raise _damaged(file, reason(error)) from None
    return found


def _facts(folder: Path) -> dict[str, Any]:
    """The third file; empty for an adapter that was not saved by Orchestry."""
    return _object(folder / _FACTS) if (folder / _FACTS).exists() else {}


def _tensors(folder: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    file = folder / _WEIGHTS
    try:
        if _facts(folder).get(_WEIGHTS) not in (None, file_digest(file)):
            raise _damaged(file, "its content is not what was written")
        tensors: dict[str, Tensor] = load_file(file)
    except (OSError, ValueError, SafetensorError) as error:
        raise _damaged(file, reason(error)) from None
    return tensors


def _damaged(file: Path, why: str) -> StoreError:
    return StoreError(
        f"the adapter {file} can't be read ({why}): restore it from a copy, or take another "
        "checkpoint"
    )


def _absent(folder: Path) -> str:
    """The message for a missing adapter: which agents have one there, and the fix."""
    there = sorted(path.parent.name for path in folder.parent.glob(f"*/{_CONFIG}"))
    if not there:
        fix = "name a folder that holds one folder per agent, as a checkpoint has it"
    elif SHARED in (folder.name, *there):
        fix = f"set learn.shared={'true' if SHARED in there else 'false'}"
    else:
        fix = "name a checkpoint of a team with the same agents, or rename its folders"
    names = ", ".join(map(unquote, there)) or "nobody"
    return f"{folder.parent} holds no adapter {unquote(folder.name)}, but of {names}: {fix}"


def _check_base(folder: Path, config: Mapping[str, Any], kind: _Kind) -> None:
    """Compares the bases by content if both are known; else the adapter must name this base."""
    named, ours = str(config.get(_BASE)), base_digest(kind.base)
    theirs = _facts(folder).get("base") or (base_digest(named) if Path(named).is_dir() else None)
    if ours and theirs:
        if ours == theirs:
            return
        raise ConfigError(
            f"the adapter in {folder} was trained on another base than {kind.base} (weights, "
            f"tokenizer or config differ; it names {named}): name its base in provider.model, or "
            "start from another adapter"
        )
    if named not in {kind.base, *kind.paths}:
        raise ConfigError(
            f"the adapter in {folder} names the base {named}, which can't be compared with "
            f"{kind.base} here: name its base in provider.model or, if they are the same, write "
            f"{kind.base} as {_BASE} into its {_CONFIG}"
        )


def _check_settings(folder: Path, config: Mapping[str, Any], kind: _Kind) -> None:
    for key, option, value in (("r", "rank", kind.rank), ("lora_alpha", "alpha", kind.alpha)):
        if (found := config.get(key)) != value:
            raise ConfigError(
                f"the adapter in {folder} has {key} {found!r}, and this run learn.{option}={value}:"
                f" set learn.{option}={found}, or start from another adapter"
            )
    if (found := bool(config.get("use_rslora"))) != kind.rslora:
        raise ConfigError(
            f"the adapter in {folder} has use_rslora {found}, and this run learn.rslora="
            f"{str(kind.rslora).lower()}: set learn.rslora={str(found).lower()}, or start from "
            "another adapter"
        )
    for key, value in _PLAIN.items():
        if (found := config.get(key)) != value and found is not None:
            raise ConfigError(
                f"the adapter in {folder} has {key} {found!r}, and backend local trains plain LoRA "
                f"({key} {value!r}): start from another adapter"
            )
    targets = config.get("target_modules")
    if isinstance(targets, list) and _last(targets) != _last(kind.targets):
        raise ConfigError(
            f"the adapter in {folder} changes {', '.join(sorted(_last(targets)))}, and this run "
            f"trains {', '.join(sorted(kind.targets))}: set learn.targets to "
            f"[{', '.join(sorted(_last(targets)))}], or start from another adapter"
        )


def _last(names: list[Any] | tuple[str, ...]) -> set[str]:
    """Last parts of module names."""
    return {str(name).rpartition(".")[2] for name in names}
