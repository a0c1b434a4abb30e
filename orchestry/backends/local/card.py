"""The README of an exported agent: whose weights these are, how they came about, how to ask them.

A model hub reads the lines on top of it; a person reads the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import yaml

from orchestry.core.config import RunConfig
from orchestry.core.resolve import Mark, leaves, marks
from orchestry.models.gguf import gguf_named
from orchestry.store.journal import Learned


@dataclass(frozen=True, slots=True)
class Card:
    """One exported folder, and where it comes from."""

    folder: str
    """Its name."""
    prompts: Mapping[str, str]
    """The system prompt of each agent that it is the weights of."""
    base: str
    """As the run names it."""
    source: str
    """What transformers loads as that base."""
    adapter: Mapping[str, Any]
    """adapter_config.json; empty if all weights of the base were trained."""
    merged: bool
    run: str
    """The run directory's name."""
    config: RunConfig
    learned: Learned
    held_out: Mapping[str, float]
    """Mean reward of evaluations after this update, by split."""

    def text(self) -> str:
        """The whole README."""
        parts = [
            _front(self),
            f"# {_team(self)}",
            _about(self),
            "## How to ask it",
            *_usage(self),
            *_prompts(self),
            "## How it was trained",
            _facts(self),
            fenced(yaml.safe_dump(_settings(self), sort_keys=False), "yaml"),
        ]
        return "\n\n".join(parts) + "\n"


def generation(config: RunConfig, role: str) -> dict[str, Any]:
    """How the run drew that agent's answers, as options of transformers' `generate`."""
    own, sampling = config.agents.get(role), config.sampling
    temperature = sampling.temperature if own is None else own.temperature
    if temperature is None:
        temperature = sampling.temperature
    tokens = {"max_new_tokens": (own and own.max_tokens) or sampling.max_tokens}
    if temperature == 0:
        return {"do_sample": False, **tokens}
    drawn = {
        "temperature": temperature,
        "top_p": config.learn.top_p,
        "top_k": config.learn.top_k or 0,
    }
    return {"do_sample": True, **drawn, **tokens}


def _front(card: Card) -> str:
    original = _original(card)
    facts: dict[str, Any] = {
        "library_name": "transformers" if card.merged else "peft",
        "pipeline_tag": "text-generation",
        "tags": ["orchestry", _method(card), "multi-agent", *_kind(card)],
    }
    if not original.startswith("/"):  # a hub knows no folder of this machine
        facts["base_model"] = original
    return f"---\n{yaml.safe_dump(facts, sort_keys=False)}---"


def _kind(card: Card) -> list[str]:
    if not card.adapter:  # learn.method=full
        return []
    return ["merged"] if card.merged else ["lora"]


def _team(card: Card) -> str:
    return f"{' and '.join(card.prompts)}, of the team of task {card.config.task}"


def _about(card: Card) -> str:
    adapter = card.adapter
    if not adapter:
        return f"{_base(card)} with all of its weights trained, in float32.{_caution(card)}"
    targets = ", ".join(sorted(adapter["target_modules"]))
    kind = "rsLoRA" if adapter.get("use_rslora") else "LoRA"
    lora = f"{kind} adapter (rank {adapter['r']}, alpha {adapter['lora_alpha']}, on {targets})"
    if not card.merged:
        return f"A {lora} on {_base(card)}.{_caution(card)}"
    return (
        f"The model {_base(card)} with a {lora} merged into its weights. They are in float32: in "
        "bfloat16, sums of a large weight and a small change are rounded back to the weight."
        f"{_caution(card)}"
    )


def _base(card: Card) -> str:
    if card.source == card.base:
        return f"`{card.base}`"
    return f"`{card.base}` (a GGUF file of {_original(card)}, its weights rounded)"


def _original(card: Card) -> str:
    """What the base was before its weights were rounded, if it is a known GGUF file."""
    weights = gguf_named(card.base) if card.source != card.base else None
    return weights.known.original if weights and weights.known else card.base.partition(":")[0]


def _caution(card: Card) -> str:
    """What is not as it was in the run, and what another machine lacks."""
    found = ""
    if quantize := card.config.learn.quantize:
        use = "It is merged into the base as it was before" if card.merged else "Quantize it alike"
        found += (
            f" The run had the base quantized to {quantize}. {use}: without it answers differ "
            "a little from the run's."
        )
    if card.source != card.base and not card.merged:
        found += (
            f" The base lies in `{card.source}`, where Orchestry converted it. For another "
            "machine, `orchestry export --merge` writes a whole model; or copy that folder along "
            "and name its new place in adapter_config.json."
        )
    return found


def _usage(card: Card) -> list[str]:
    """Code that runs as it stands, in the folder above this one."""
    role, prompt = next(iter(card.prompts.items()))
    where = json.dumps(card.folder)
    load = (
        _LOAD_MERGED.format(folder=where)
        if card.merged
        else _LOAD_ADAPTER.format(folder=where, base=json.dumps(card.source))
    )
    options = ", ".join(f"{key}={value}" for key, value in generation(card.config, role).items())
    system = {"role": "system", "content": prompt}
    own = card.config.agents.get(role)
    shown = [turn.model_dump() for one in (own.examples if own else ()) for turn in one.messages]
    messages = [*([system] if prompt else []), *shown, {"role": "user", "content": "..."}]
    found = [fenced(load + _ASK.format(messages=_listed(messages), options=options), "python")]
    if len(card.prompts) > 1:
        found.append(f"This asks {role}; the other agents have the same weights.")
    if stop := card.config.sampling.stop:
        found.append(f"The run also ended an answer at any of {', '.join(map(repr, stop))}.")
    return found


def _listed(values: list[dict[str, str]]) -> str:
    return "[\n" + "".join(f"    {value!r},\n" for value in values) + "]"


_LOAD_ADAPTER = """\
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer

base = {base}
model = PeftModel.from_pretrained(AutoModelForCausalLM.from_pretrained(base), {folder})
tokenizer = AutoTokenizer.from_pretrained(base)
"""
_LOAD_MERGED = """\
from transformers import AutoModelForCausalLM, AutoTokenizer

model = AutoModelForCausalLM.from_pretrained({folder})
tokenizer = AutoTokenizer.from_pretrained({folder})
"""
_ASK = """
messages = {messages}
prompt = tokenizer.apply_chat_template(
    messages, add_generation_prompt=True, enable_thinking=False, tokenize=False
)
inputs = tokenizer(prompt, add_special_tokens=False, return_tensors="pt")
ids = model.generate(**inputs, {options})
print(tokenizer.decode(ids[0, inputs["input_ids"].shape[1] :], skip_special_tokens=True))
"""


def _prompts(card: Card) -> list[str]:
    """Each agent's system prompt, readable, and how its answers were drawn."""
    found = []
    for role, prompt in card.prompts.items():
        drawn = generation(card.config, role).items()
        settings = ", ".join(f"{key} {value}" for key, value in drawn)
        shown = fenced(prompt, "text") if prompt else "None."
        found += [f"## System prompt of {role}", shown, f"Its answers were drawn with {settings}."]
    return found


def _method(card: Card) -> str:
    """How the weights learned: magrpo, or the method of a distillation."""
    return str(card.learned.state.get("distilled", {}).get("method", "magrpo"))


_HOW = {
    "magrpo": "MAGRPO (arXiv 2508.04652) with these settings:",
    "sft": "supervised fine-tuning on chosen answers (`orchestry distil`):",
    "dpo": "DPO (arXiv 2305.18290) on pairs of the agents' answers (`orchestry distil`):",
}


def _facts(card: Card) -> str:
    learned, config = card.learned, card.config
    reward = f"{learned.state['reward']:.3f}"
    lines = [
        f"- run `{card.run}`, task {config.task}, seed {config.seed}",
        f"- after update {learned.update}",
        f"- mean reward of the episodes of that update, played before it: {reward}"
        if _method(card) == "magrpo"
        else f"- {learned.state['samples']} examples, whose mean reward was {reward}",
        *(f"- mean reward on {split}, after it: {x:.3f}" for split, x in card.held_out.items()),
        f"- {_HOW[_method(card)]}",
    ]
    return "\n".join(lines)


def _settings(card: Card) -> dict[str, Any]:
    """What decides how the weights came about."""
    if distilled := card.learned.state.get("distilled"):
        return dict(distilled)
    left_out, learn = {"learn.enabled", "learn.from"}, card.config.learn
    return {
        "learn": {
            key.removeprefix("learn."): value
            for key, value in leaves({"learn": learn.model_dump(mode="json", by_alias=True)})
            if key not in left_out and Mark.OPERATIONAL not in marks(RunConfig, key)
        }
    }


def fenced(text: str, language: str) -> str:
    """A code block that no line of the text can end."""
    ticks = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    return f"{fence}{language}\n{text.rstrip()}\n{fence}"
