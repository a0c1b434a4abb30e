"""Exports a run's best answers as chats, for fine-tuning elsewhere, with a card.

`openai`: the lines that OpenAI's fine-tuning takes. `hf`: conversational prompts and completions,
or chosen and rejected answers, as TRL reads them. The answers are chosen as for a distillation.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, Literal, Unpack
from urllib.parse import quote

import yaml

from orchestry.backends.gold import GOLD
from orchestry.backends.local.card import fenced
from orchestry.core.errors import ConfigError
from orchestry.core.types import Message
from orchestry.engine.export import Chats, new_export
from orchestry.engine.trust import Trust
from orchestry.ext.distil.examples import Examples, How, examples
from orchestry.ext.distil.preferences import Preference
from orchestry.ext.distil.winners import BY, Lesson
from orchestry.store.journal import Opened
from orchestry.store.run import Run, load_run

Form = Literal["openai", "hf"]
_Item = Lesson | Preference


def export_chats(
    run: Run | str | Path,
    folder: Path | None = None,
    form: Form = "openai",
    *,
    task_path: Sequence[Path] = (),
    note: Callable[[str], None] = lambda text: None,
    trust: Trust = False,
    **how: Unpack[How],
) -> Chats:
    """Writes one JSON-lines file per agent, and README.md, into a new or empty folder (default:
    `RUN/export/FORM`).

    `how` chooses the answers, as in `distil`. Raises ConfigError for a run that nothing may be
    learned from, and if no answer is left.
    """
    source = load_run(run.folder if isinstance(run, Run) else run)
    config = {"task_path": [str(path) for path in task_path]} if task_path else {}
    chosen = How(**{"held_out": 0.0, **how})
    found = examples([source], config=config, note=note, trust=trust, **chosen)
    whole = [one for one in found.lessons if _ended(one)]
    cut = len(found.lessons) - len(whole)
    if not whole:
        raise ConfigError(
            f"every chosen answer of {source.folder} was cut by its limit, and none is whole: "
            "raise --top, or play with a higher sampling.max_tokens"
        )
    mine = {role: [one for one in whole if one.agent == role] for role in found.roles}
    place = folder or source.folder / "export" / form
    names = {role: f"{quote(role, safe=' ')}.jsonl" for role, lines in mine.items() if lines}
    with new_export(place) as part:
        for role, name in names.items():
            lines = [json.dumps(_line(one, form), ensure_ascii=False) for one in mine[role]]
            (part / name).write_text("\n".join(lines) + "\n", encoding="utf-8")
        card = _card(source, found, {name: mine[role] for role, name in names.items()}, cut)
        (part / "README.md").write_text(card, encoding="utf-8")
    return Chats(
        folder=place,
        form=form,
        files={role: place / name for role, name in names.items()},
        lines={role: len(mine[role]) for role in names},
        cut=cut,
    )


def _sides(one: _Item) -> tuple[Lesson, ...]:
    return (one,) if isinstance(one, Lesson) else (one.better, one.worse)


def _ended(one: _Item) -> bool:
    return all(side.ended for side in _sides(one))


def _line(one: _Item, form: Form) -> dict[str, Any]:
    first = _sides(one)[0]
    prompt = [_plain(message, first.messages, form) for message in first.messages]
    answers = [[_plain(side.said, (), form)] for side in _sides(one)]
    able = {"tools": [tool.function for tool in first.tools]} if first.tools else {}
    pair = len(answers) == 2
    if form == "openai" and not pair:
        for before in prompt:
            if before["role"] == "assistant":
                before["weight"] = 0  # else it would be learned with the answer
        return {"messages": [*prompt, *answers[0]], **able}
    if form == "openai":
        return {
            "input": {"messages": prompt, **able},
            "preferred_output": answers[0],
            "non_preferred_output": answers[1],
        }
    said = {"chosen": answers[0], "rejected": answers[1]} if pair else {"completion": answers[0]}
    facts = {"problem": one.problem, "reward": one.reward, "model": _named(one.model)}
    return {"prompt": prompt, **said, **able, **facts}


def _plain(message: Message, chat: Sequence[Message], form: Form) -> dict[str, Any]:
    """A message as both forms take it. In `hf`, a call has its arguments as an object, and a result
    its tool's name, for chat templates."""
    found: dict[str, Any] = {"role": message.role, "content": message.content}
    if message.calls and form == "openai":
        found["tool_calls"] = [call.function for call in message.calls]
    elif message.calls:
        found["tool_calls"] = [
            {"type": "function", "function": {"name": call.name, "arguments": call.given}}
            for call in message.calls
        ]
    if message.role == "tool":
        names = {call.id: call.name for one in chat for call in one.calls}
        own = form == "openai"
        found |= {"tool_call_id": message.call} if own else {"name": names.get(message.call, "")}
    return found


# --- the card -----------------------------------------------------------------------------------


def _card(run: Run, found: Examples, files: Mapping[str, Sequence[_Item]], cut: int) -> str:
    """The README; the lines on top are for a data set hub."""
    config, settings = found.setup.config, found.settings
    every = [one for lines in files.values() for one in lines]
    front = {
        "tags": ["orchestry", "multi-agent"],
        "configs": [
            {"config_name": lines[0].agent, "data_files": name} for name, lines in files.items()
        ],
    }
    kind = "Preferences between two answers" if settings.method == "dpo" else "Answers"
    rows = [_row(name, lines) for name, lines in files.items()]
    parts = [
        f"---\n{yaml.safe_dump(front, sort_keys=False)}---",
        f"# {kind} of the team of task {config.task}",
        "Each file holds the prompts that one agent saw and its answers, one example per line.",
        "\n".join([*_HEAD, *rows]),
        "## Where they come from",
        "\n".join([*_origin(run, found, every), *_chosen(found, cut)]),
        "## Licence",
        _licence(run, found, every),
        "## How to use it",
        fenced(_USE[settings.method].format(file=next(iter(files))), "python"),
    ]
    return "\n\n".join(parts) + "\n"


_HEAD = ("| agent | file | examples | rewards | mean credit |", "|---|---|---|---|---|")


def _row(name: str, lines: Sequence[_Item]) -> str:
    rewards = [one.reward for one in lines]
    credits = [x.credit for one in lines for x in _sides(one)[:1] if x.credit is not None]
    credit = f"{fmean(credits):+.3f} ({len(credits)} known)" if credits else "not measured"
    link = f"[{name}](./{quote(name)})"
    ends = f"{min(rewards):.3f} to {max(rewards):.3f}"
    return f"| {lines[0].agent} | {link} | {len(lines)} | {ends} | {credit} |"


def _origin(run: Run, found: Examples, every: Sequence[_Item]) -> list[str]:
    config = found.setup.config
    models = _models(every)
    written = f"written by {models}" if models else "of no model"
    gold = sum(one.run == GOLD for one in every)
    return [
        f"- run `{run.folder.absolute().name}`, backend {run.config.get('backend', 'api')}, "
        f"answers {written}",
        f"- task {config.task}, split train, {len({one.problem for one in every})} problems",
        *([f"- {gold} of them are the task's gold answers, of no model"] if gold else []),
    ]


def _models(every: Sequence[_Item]) -> str:
    """Who wrote the answers, besides the task."""
    names = {side.model for one in every for side in _sides(one)} - {GOLD}
    return ", ".join(sorted(map(_named, names)))


def _named(model: str) -> str:
    """Without the folders of this machine."""
    return Path(model).name if model.startswith("/") else model


def _chosen(found: Examples, cut: int) -> list[str]:
    how = found.settings
    if how.method == "dpo":
        what = (
            f"the {how.share:.0%} of the pairs with the largest differences; the reward is the "
            "value of the state that the better answer led to"
        )
    else:
        share = f"for each agent, the {how.share:.0%} of the trajectories"
        what = f"{share} that come first by {BY[how.by]}"
    least = f", with a reward of at least {how.min_reward:g}" if how.min_reward else ""
    short = [f"- {cut} examples with an answer that was cut by its limit are left out"]
    bare = ["- prompts without learned behaviours (the answers were given with them)"]
    return [
        f"- chosen: {what}{least}; equal answers to equal prompts once",
        *(bare if how.drop_behaviors else []),
        *(short if cut else []),
    ]


def _licence(run: Run, found: Examples, every: Sequence[_Item]) -> str:
    task = found.setup.config.task
    opened = next((event for event in run.events if isinstance(event, Opened)), None)
    who = f" ({opened.provider})" if opened else ""
    models = _models(every)
    written = (
        f" The answers were written by {models}{who}: its vendor's terms or its licence may "
        "restrict training other models on them, so read them first."
        if models
        else ""
    )
    return f"The prompts hold problems of task {task}, and have that task's licence.{written}"


_USE = {
    "sft": """\
from datasets import load_dataset
data = load_dataset("json", data_files="{file}", split="train")  # for TRL's SFTTrainer
""",
    "dpo": """\
from datasets import load_dataset
data = load_dataset("json", data_files="{file}", split="train")  # for TRL's DPOTrainer
""",
}
