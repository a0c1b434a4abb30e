"""An adapter on disk, as peft has it: written, and read with a check of all that it must be.

A third file says which base the adapter was trained on and what its weights are, by content: so a
base that was moved is the same one, and a bit that was flipped is found.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from torch import Tensor

from orchestry.backends.local.identity import base_digest
from orchestry.core.digests import file_digest
from orchestry.core.errors import ConfigError, StoreError, reason
from orchestry.core.files import to_json

SHARED = "shared"
"""The folder of the one adapter that all agents share."""
_WEIGHTS, _CONFIG = "adapter_model.safetensors", "adapter_config.json"
_FACTS = "adapter_digests.json"
_BASE = "base_model_name_or_path"
_PLAIN: dict[str, Any] = {
    "peft_type": "LORA",
    "use_rslora": False,
    "use_dora": False,
    "lora_bias": False,
    "bias": "none",
    "fan_in_fan_out": False,
    "alpha_pattern": {},
    "rank_pattern": {},
    "modules_to_save": None,
    "layers_to_transform": None,
}
"""What peft may do otherwise, and these adapters do not."""


@dataclass(frozen=True, slots=True)
class Kind:
    """What all adapters of a team have in common."""

    base: str
    """Its name."""
    paths: frozenset[str]
    """Other names that it has."""
    rank: int
    alpha: int
    dropout: float
    targets: tuple[str, ...]


def write(folder: Path, kind: Kind, tensors: Mapping[str, Tensor]) -> None:
    """Saves one adapter in a new folder, so that peft's `from_pretrained` loads it."""
    from peft import LoraConfig
    from safetensors.torch import save_file

    folder.mkdir(parents=True, exist_ok=True)
    LoraConfig(
        base_model_name_or_path=kind.base,
        task_type="CAUSAL_LM",
        inference_mode=True,
        r=kind.rank,
        lora_alpha=kind.alpha,
        lora_dropout=kind.dropout,
        target_modules=list(kind.targets),
    ).save_pretrained(str(folder))
    _settle(folder / _CONFIG)
    save_file(dict(tensors), folder / _WEIGHTS, metadata={"format": "pt"})
    facts = {"base": base_digest(kind.base), _WEIGHTS: file_digest(folder / _WEIGHTS)}
    (folder / _FACTS).write_text(to_json(facts), encoding="utf-8")


def read(
    folder: Path, kind: Kind, shapes: Mapping[str, tuple[int, ...]], any_base: bool = False
) -> dict[str, Tensor]:
    """The tensors of an adapter that fits; with `any_base` the caller vouches for its base.

    Raises StoreError for files that are damaged or not there, and ConfigError for an adapter that
    was trained on another base or with other settings.
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


def _settle(file: Path) -> None:
    """peft writes a set, in another order in each process."""
    config = json.loads(file.read_text(encoding="utf-8"))
    config["target_modules"] = sorted(config["target_modules"])
    file.write_text(to_json(config), encoding="utf-8")


def _object(file: Path) -> dict[str, Any]:
    try:
        found = json.loads(file.read_text(encoding="utf-8"))
        if not isinstance(found, dict):
            raise ValueError("it holds no keys and values")
    except (OSError, ValueError) as error:
        raise _damaged(file, reason(error)) from None
    return found


def _facts(folder: Path) -> dict[str, Any]:
    """Nothing for an adapter that others made."""
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
    """Whose adapters are there instead, and what to do about it."""
    there = sorted(path.parent.name for path in folder.parent.glob(f"*/{_CONFIG}"))
    if not there:
        fix = "name a folder that holds one folder an agent, as a checkpoint has it"
    elif SHARED in (folder.name, *there):
        fix = f"set learn.shared={'true' if SHARED in there else 'false'}"
    else:
        fix = "name a checkpoint of a team with the same agents, or rename its folders"
    names = ", ".join(map(unquote, there)) or "nobody"
    return f"{folder.parent} holds no adapter {unquote(folder.name)}, but of {names}: {fix}"


def _check_base(folder: Path, config: Mapping[str, Any], kind: Kind) -> None:
    """By content where both are known; else the adapter must name this base."""
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


def _check_settings(folder: Path, config: Mapping[str, Any], kind: Kind) -> None:
    for key, option, value in (("r", "rank", kind.rank), ("lora_alpha", "alpha", kind.alpha)):
        if (found := config.get(key)) != value:
            raise ConfigError(
                f"the adapter in {folder} has {key} {found!r}, and this run learn.{option}={value}:"
                f" set learn.{option}={found}, or start from another adapter"
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
            f"trains {', '.join(sorted(kind.targets))}: start from another adapter"
        )


def _last(names: list[Any] | tuple[str, ...]) -> set[str]:
    """Last parts of module names."""
    return {str(name).rpartition(".")[2] for name in names}
