"""Exports what a local run learned: peft adapters, or models with merged adapters.

An export is written whole or not at all. Nothing in the run changes, except that the default folder
is in it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from orchestry.backends.local.card import Card, fenced, generation
from orchestry.backends.local.model import load_base, loadable, require_local
from orchestry.backends.local.weights import ADAPTER, FULL
from orchestry.core.config import RunConfig, validate
from orchestry.core.errors import ConfigError, StoreError, reason, unknown
from orchestry.core.files import new_folder, to_json
from orchestry.store.checkpoints import Which, checkpoint, chosen_update
from orchestry.store.journal import Learned
from orchestry.store.measurements import evaluation_folders
from orchestry.store.run import Run, check_texts, load_run

_BASE = "base_model_name_or_path"


@dataclass(frozen=True, slots=True)
class Adapter:
    """One adapter of a checkpoint."""

    folder: Path
    agents: tuple[str, ...]
    """The agents that use it: one, or all that share it."""
    config: dict[str, Any]
    """adapter_config.json; empty if all weights of the base were trained."""
    base: str
    """The base as the adapter names it or, if that folder is gone, as the run names it now."""


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written, and from which run."""

    folder: Path
    learned: Learned
    adapters: tuple[Adapter, ...]
    """What was exported."""

    @property
    def written(self) -> list[tuple[Path, Adapter]]:
        """The new folder of each adapter."""
        return [(self.folder / adapter.folder.name, adapter) for adapter in self.adapters]


def export(
    run: str | Path,
    folder: Path | None = None,
    *,
    merge: bool = False,
    agents: Sequence[str] = (),
    update: Which = None,
    note: Callable[[str], None] = lambda text: None,
) -> Exported:
    """Writes one folder per agent into a new or empty folder (default: `RUN/export/update-N`).

    Without `merge`, peft loads each folder as an adapter; with it, transformers loads it as a
    model; its README has the code. `agents`: only these. `update`: its number or `best`; None: the
    last. Raises ConfigError if there is nothing to export, and StoreError if it can't be read or
    written; then no file is left.
    """
    found = load_run(run)
    config = _local(found)
    learned = _chosen(found, update)
    if full := config.learn.method == "full":
        _refuse_merge(merge)
    adapters = _adapters(found, learned, config, agents)
    name = f"update-{learned.update}" + ("--merged" if merge else "")
    place = found.folder / "export" / name if folder is None else folder
    if merge:
        require_local()
    prompts, rewards = prompts_of(found), held_out(found, learned.update)
    sources = [one.base if full else _source(one, merge, note) for one in adapters]
    with new_export(place) as part:
        for adapter, source in zip(adapters, sources, strict=True):
            own = part / adapter.folder.name
            if full:
                _copy_whole(adapter, own, generation(config, adapter.agents[0]))
            elif merge:
                note(f"merging {own.name} into the base {adapter.base}")
                _merge(adapter, own, generation(config, adapter.agents[0]))
            else:
                _copy(adapter, own, source)
            card = Card(
                folder=own.name,
                prompts={role: prompts.get(role, "") for role in adapter.agents},
                base=adapter.base,
                source=source,
                adapter=adapter.config,
                merged=merge or full,
                run=found.folder.absolute().name,
                config=config,
                learned=learned,
                held_out=rewards,
            )
            (own / "README.md").write_text(card.text(), encoding="utf-8")
        page = _page(config, learned, adapters, merge or full, whole=_covers(adapters, prompts))
        (part / "README.md").write_text(page, encoding="utf-8")
    return Exported(place, learned, adapters)


def _covers(adapters: Sequence[Adapter], roles: Iterable[str]) -> bool:
    """Whether these are the adapters of all agents."""
    return {role for one in adapters for role in one.agents} >= set(roles)


def _page(
    config: RunConfig, learned: Learned, adapters: Sequence[Adapter], merged: bool, *, whole: bool
) -> str:
    """The README of the whole team or, if not `whole`, of some of its agents; another run can't
    learn from these alone."""
    folders = {role: f"./{one.folder.name}" for one in adapters for role in one.agents}
    table = [f"| {role} | [{name[2:]}]({name}/README.md) |" for role, name in folders.items()]
    more = [
        "Its adapters, in another run of the same task:",
        fenced(f"orchestry run --backend local --task {config.task} --set learn.from=.", "sh"),
    ]
    parts = [
        f"# {', '.join(folders)}{':' if whole else ', of'} the team of task {config.task}",
        f"Weights after update {learned.update}. Each folder's README has the agent's system "
        "prompt, the sampling settings and code that asks it.",
        "\n".join(["| agent | folder |", "|---|---|", *table]),
        "## How to use it",
        fenced((_TEAM_MERGED if merged else _TEAM).format(folders=json.dumps(folders)), "python"),
        *(more if whole and not merged else []),
    ]
    return "\n\n".join(parts) + "\n"


_TEAM = """\
from peft import AutoPeftModelForCausalLM
folders = {folders}
team = {{role: AutoPeftModelForCausalLM.from_pretrained(name) for role, name in folders.items()}}
"""
_TEAM_MERGED = """\
from transformers import AutoModelForCausalLM
folders = {folders}
team = {{role: AutoModelForCausalLM.from_pretrained(name) for role, name in folders.items()}}
"""


# --- what is exported ---------------------------------------------------------------------------


def _local(run: Run) -> RunConfig:
    check_texts(run)
    config = validate(run.config)
    if config.backend == "local":
        return config
    raise ConfigError(
        f"{run.folder} is a run of backend {config.backend}, which learns prompts and holds no "
        "weights: leave out --merge and --agent, and its team's prompts are exported"
    )


def _chosen(run: Run, update: Which) -> Learned:
    """The chosen update; raises ConfigError if nothing was learned yet."""
    learned = chosen_update(run, update)
    if learned is None and chosen_update(run, None) is not None:
        raise ConfigError(
            f"update 0 of {run.folder} has learned nothing to export: name one of its updates, or "
            "leave out --update for the last"
        )
    if learned is None:
        raise ConfigError(
            f"{run.folder} has learned nothing to export before its first update, which takes "
            f"learn.every={validate(run.config).learn.every} episodes: `orchestry resume "
            f"{run.folder} --episodes N` plays more"
        )
    return learned


def _adapters(
    run: Run, learned: Learned, config: RunConfig, agents: Sequence[str]
) -> tuple[Adapter, ...]:
    """The adapters that learned, or those of `agents`; raises ConfigError for a missing one."""
    kind = FULL if config.learn.method == "full" else ADAPTER
    folders = sorted(checkpoint(run, learned).glob(f"*/{kind}"))
    found = {unquote(path.parent.name): path.parent for path in folders}
    if config.learn.shared:
        if agents:
            raise ConfigError(
                f"all agents of {run.folder} share one adapter (learn.shared): leave out --agent"
            )
        everyone = tuple(prompts_of(run))
        return tuple(_adapter(folder, everyone, config) for folder in found.values())
    for agent in agents:
        if agent not in found:
            raise ConfigError(unknown(f"agent of {run.folder}", agent, [*found]))
    frozen = {role for role, own in config.agents.items() if own.frozen}
    chosen = agents or [name for name in found if name not in frozen]
    return tuple(_adapter(found[name], (name,), config) for name in found if name in chosen)


def _refuse_merge(merge: bool) -> None:
    if merge:
        raise ConfigError(
            "learn.method=full trained whole models, so nothing can be merged: leave out --merge"
        )


def _adapter(folder: Path, agents: tuple[str, ...], run: RunConfig) -> Adapter:
    if (folder / FULL).is_file():
        return Adapter(folder, agents, {}, str(_facts(folder).get("name")))
    try:
        config = json.loads((folder / ADAPTER).read_text(encoding="utf-8"))
        if not isinstance(config, dict):
            raise ValueError("it holds no keys and values")
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{folder / ADAPTER} can't be read ({reason(error)}): restore it from a copy, or "
            "export another checkpoint"
        ) from None
    base, own = str(config[_BASE]), run.agents.get(agents[0])
    if _gone(base):
        base = (own and own.model) or run.provider.model or base
    return Adapter(folder, agents, config, base)


def _facts(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / FULL).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise StoreError(
            f"{folder / FULL} can't be read ({reason(error)}): restore it from a copy, or export "
            "another checkpoint"
        ) from None
    return found


def _gone(base: str) -> bool:
    """Whether it is a path that does not exist."""
    return Path(base).is_absolute() and not Path(base).exists()


def prompts_of(run: Run) -> dict[str, str]:
    """The agents' last system prompts, from the journal; the task's files may have changed. A
    distilled team has played nothing, and its update names them."""
    updates = [event.state for event in run.events if isinstance(event, Learned)]
    told = {role: text for state in updates for role, text in state.get("prompts", {}).items()}
    return {**told, **dict(system_prompts(run))}


def system_prompts(run: Run) -> Iterator[tuple[str, str]]:
    """Each turn's agent and system prompt, in the order of the journal."""
    for episode in run.episodes:
        for turn in (turn for node in episode.nodes for turn in node.turns):
            system = [message.content for message in turn.messages if message.role == "system"]
            yield turn.agent, "\n".join(system)


def held_out(run: Run, update: int) -> dict[str, float]:
    """Mean reward per split, from finished evaluations of that update; if a split has several, the
    one with the most samples."""
    found: dict[str, tuple[int, float]] = {}
    for place, stage in evaluation_folders(run.folder):
        if stage.update != update or stage.task or not (place / "summary.json").exists():
            continue
        summary = Run(place).summary
        if summary.stopped == "done" and summary.mean_reward is not None:
            one = (stage.samples or 0, summary.mean_reward)
            found[stage.split] = max(one, found.get(stage.split, one))
    return {split: mean for split, (_, mean) in sorted(found.items())}


def _source(adapter: Adapter, merge: bool, note: Callable[[str], None]) -> str:
    """The adapter's base, as transformers loads it. A missing base is an error if it is needed,
    else a note."""
    if _gone(adapter.base):
        gone = f"the base of {adapter.folder.name}, {adapter.base}, is not there any more"
        if merge:
            run = adapter.folder.parents[2]
            raise ConfigError(
                f"{gone}: put it back, say where it is now with `orchestry resume {run} --set "
                "provider.model=FOLDER`, or leave out --merge to export adapters"
            )
        note(f"{gone}: name its new place in the exported {ADAPTER}, as {_BASE}")
        return adapter.base
    return loadable(adapter.base)


# --- writing ------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Chats:
    """Chats that were written, to fine-tune other models on."""

    folder: Path
    form: str
    """`openai` or `hf`."""
    files: Mapping[str, Path]
    """By agent."""
    lines: Mapping[str, int]
    """By agent: how many lines its file has."""
    cut: int
    """Examples with an answer that was cut by its limit, which are left out: a model would learn to
    stop in the middle."""


@contextmanager
def new_export(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder` at the end, and is removed after an error."""
    if not folder.name:
        raise ConfigError(f"--out {folder} is not a new folder: give it a name")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        what = "is not empty" if folder.is_dir() else "is not a directory"
        raise ConfigError(f"{folder} {what}: choose another folder with --out, or remove it first")
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with new_folder(folder) as part:
            yield part
    except OSError as error:
        raise StoreError(
            f"the export can't be written to {folder} ({reason(error)}): free space or change "
            "rights there, or choose another folder with --out"
        ) from None


def _copy(adapter: Adapter, folder: Path, source: str) -> None:
    """Copies the adapter, with a base name that transformers finds."""
    _need_room(folder, sum(file.stat().st_size for file in adapter.folder.iterdir()))
    shutil.copytree(adapter.folder, folder)
    (folder / ADAPTER).write_text(to_json({**adapter.config, _BASE: source}), encoding="utf-8")


def _copy_whole(adapter: Adapter, folder: Path, options: Mapping[str, Any]) -> None:
    """Copies a whole model, with the run's sampling settings."""
    _need_room(folder, sum(file.stat().st_size for file in adapter.folder.iterdir()))
    shutil.copytree(adapter.folder, folder, ignore=shutil.ignore_patterns(FULL))
    file = folder / "generation_config.json"
    given = json.loads(file.read_text(encoding="utf-8")) if file.exists() else {}
    file.write_text(to_json({**given, **options}), encoding="utf-8")


def _merge(adapter: Adapter, folder: Path, options: Mapping[str, Any]) -> None:
    """Merges the adapter into the base's weights, in float32 (its README says why)."""
    from safetensors import SafetensorError
    from transformers import GenerationConfig

    from orchestry.backends.local.adapters import Adapters

    base = load_base(adapter.base, "float32", device="cpu")
    _need_room(folder, sum(weight.nbytes for weight in base.model.parameters()))
    worn = Adapters(
        base,
        [unquote(adapter.folder.name)],
        rank=adapter.config["r"],
        alpha=adapter.config["lora_alpha"],
        targets=adapter.config["target_modules"],
        rslora=bool(adapter.config.get("use_rslora")),
    )
    worn.load(adapter.folder.parent)
    build: Any = GenerationConfig  # untyped
    base.model.generation_config = build(
        eos_token_id=sorted(base.eos_ids), pad_token_id=base.tokenizer.pad_token_id, **options
    )
    try:
        worn.export(0, folder)
    except SafetensorError as error:  # the disk's error, in another class
        raise OSError(reason(error)) from None


def _need_room(folder: Path, size: int) -> None:
    """Raises StoreError if there is no room for so many bytes."""
    if (free := shutil.disk_usage(folder.parent).free) < size:
        raise StoreError(
            f"the weights of {folder.name} take {size / 1e6:,.0f} MB, and the disk that they are "
            f"to go to has {free / 1e6:,.0f} MB free: free space there, or choose another folder "
            "with --out"
        )
