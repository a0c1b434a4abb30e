"""How much backend local computes at a time, and the sizes of the models that it computes with.

Without torch: an estimate of memory is made on any machine.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from orchestry.backends.local.converted import converted_folder
from orchestry.backends.local.model import source_of
from orchestry.core.errors import ConfigError, reason
from orchestry.core.learning import LearnConfig
from orchestry.core.types import Member
from orchestry.models.gguf import EMBEDDED, gguf_named
from orchestry.models.header import Header, read_header

ON_A_GPU, ON_A_CPU = 4096, 1024
"""Tokens of a micro-batch."""
JOINED_ON_A_CPU = 512
"""Tokens up to which a CPU takes several prompts in one pass: more hardly pays there, and memory
grows with them, as does the padding of prompts of unequal lengths."""
MAX_ROWS = 256
"""Rows decoded together. Keys and values take rows x tokens x layers x 4 x KV width bytes
(bf16)."""
PREFILL_TOKENS = 4096
"""Tokens of one pass over prompts. Its masks have at most PREFILL_TOKENS ** 2 / 2 numbers; a single
prompt needs none (python -m benchmarks.guarantees.prefill)."""
CHUNK = 1 << 25
"""Logits held at once: 128 MiB in float32, for any vocabulary."""
ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
_NEEDED = (
    "num_hidden_layers",
    "hidden_size",
    "intermediate_size",
    "num_attention_heads",
    "vocab_size",
)
_MAY_LACK = ("num_key_value_heads", "head_dim")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True)
class Shape:
    """The sizes of a decoder whose layers are attention and a gated feed-forward part (Llama,
    Qwen, Mistral and their like)."""

    layers: int
    hidden: int
    inner: int
    """Width of the feed-forward part."""
    heads: int
    kv_heads: int
    head: int
    """Width of a head."""
    vocab: int
    tied: bool
    """Whether input and output embeddings are one matrix."""
    normed: bool = False
    """Whether queries and keys are normalised (Qwen3)."""

    @property
    def queries(self) -> int:
        """Width of all queries."""
        return self.heads * self.head

    @property
    def keys(self) -> int:
        """Width of all keys, and of all values."""
        return self.kv_heads * self.head

    @property
    def linears(self) -> dict[str, tuple[int, int]]:
        """(in, out) of each linear layer of one layer."""
        return {
            "q_proj": (self.hidden, self.queries),
            "k_proj": (self.hidden, self.keys),
            "v_proj": (self.hidden, self.keys),
            "o_proj": (self.queries, self.hidden),
            "gate_proj": (self.hidden, self.inner),
            "up_proj": (self.hidden, self.inner),
            "down_proj": (self.inner, self.hidden),
        }

    @property
    def computing(self) -> int:
        """Numbers in the linear layers, which a quantized base holds in 4 or 8 bits."""
        return self.layers * sum(wide * high for wide, high in self.linears.values())

    @property
    def embedding(self) -> int:
        """Numbers in the embeddings, the output layer among them."""
        return self.vocab * self.hidden * (1 if self.tied else 2)


KNOWN = {
    EMBEDDED: Shape(30, 576, 1536, 9, 3, 64, 49_152, tied=True),
    "Qwen/Qwen2.5-0.5B-Instruct": Shape(24, 896, 4864, 14, 2, 64, 151_936, tied=True),
    "Qwen/Qwen2.5-Coder-0.5B-Instruct": Shape(24, 896, 4864, 14, 2, 64, 151_936, tied=True),
    "Qwen/Qwen3-0.6B": Shape(28, 1024, 3072, 16, 8, 128, 151_936, tied=True, normed=True),
    "Qwen/Qwen2.5-Coder-1.5B-Instruct": Shape(28, 1536, 8960, 12, 2, 128, 151_936, tied=True),
    "Qwen/Qwen3-1.7B": Shape(28, 2048, 6144, 16, 8, 128, 151_936, tied=True, normed=True),
    "Qwen/Qwen2.5-Coder-3B-Instruct": Shape(36, 2048, 11_008, 16, 2, 128, 151_936, tied=True),
    "Qwen/Qwen3-4B": Shape(36, 2560, 9728, 32, 8, 128, 151_936, tied=True, normed=True),
    "Qwen/Qwen2.5-Coder-7B-Instruct": Shape(28, 3584, 18_944, 28, 4, 128, 152_064, tied=False),
}
"""Models whose sizes are known without their files: as their config.json on the hub has them."""


def model_named(name: str) -> str:
    """A model as provider.model takes it: also by a part of a known one's name, such as `7B`, which
    is no part of `1.7B`. Raises ConfigError for a part of the names of models that differ."""
    if name in KNOWN or gguf_named(name) or Path(name).expanduser().is_dir():
        return name
    part = re.compile(rf"(?<![\d.]){re.escape(name)}", re.IGNORECASE)
    found = [one for one in KNOWN if part.search(one)]
    if len({KNOWN[one] for one in found}) > 1:
        raise ConfigError(f"{name} is a part of {', '.join(found)}: name one of them")
    return found[0] if found else name


def shape_of(model: str) -> Shape:
    """The sizes of a base: from its config.json, in a folder or the hub's cache, or its GGUF file,
    else as known.

    Raises ConfigError for a model that is not on this machine and not known, and for one of another
    build, such as a mixture of experts.
    """
    weights, folder = gguf_named(model), on_disk(model) or on_disk(model, half=True)
    try:
        if weights and weights.path.is_file():
            return _shape(model, _config(read_header(weights.path)))
        if folder is not None:
            return _shape(model, json.loads((folder / "config.json").read_text(encoding="utf-8")))
    except KeyError as error:
        raise ConfigError(
            f"{model} holds no language model ({error} is missing): choose another file"
        ) from None
    except (OSError, ValueError) as error:
        what = weights.path if weights else f"the config.json of {model}"
        raise ConfigError(f"{what} can't be read ({reason(error)}): fetch it again") from None
    if weights and weights.known and weights.known.original in KNOWN:
        return replace(KNOWN[weights.known.original], tied=False)
    if (named := weights.base if weights else model) in KNOWN:
        return KNOWN[named]
    raise ConfigError(
        f"the sizes of {model} are not known, since it is not on this machine: fetch it, or name "
        f"its folder, or one of {', '.join(KNOWN)}"
    )


def on_disk(model: str, half: bool = False) -> Path | None:
    """The folder from which a base is loaded without network; None where that can't be done.
    `half`: in bfloat16, which of a GGUF file is a folder of its own.

    Raises ConfigError for a path that is no folder.
    """
    if weights := gguf_named(model):
        folder = converted_folder(weights, half=half)
        return folder if folder and folder.is_dir() else None
    source = Path(source_of(model))
    if source.is_dir():
        return source
    if find_spec("huggingface_hub") is None:
        return None
    from orchestry.backends.local.model import fetched

    cached = fetched(model)
    return cached if cached and any(cached.glob("*.safetensors")) else None


def _config(header: Header) -> dict[str, Any]:
    """A GGUF file's sizes under the names of a config.json."""
    names = {
        "num_hidden_layers": "block_count",
        "hidden_size": "embedding_length",
        "intermediate_size": "feed_forward_length",
        "num_attention_heads": "attention.head_count",
        "num_key_value_heads": "attention.head_count_kv",
        "head_dim": "attention.key_length",
        "num_experts": "expert_count",
    }
    own = {key: header.fields.get(f"{header.architecture}.{n}") for key, n in names.items()}
    tied = "output.weight" not in header.tensors
    more = {"vocab_size": header.vocabulary, "tie_word_embeddings": tied}
    return {**own, **more, "model_type": header.architecture}


def _shape(model: str, config: Any) -> Shape:
    if not isinstance(config, Mapping):
        raise ConfigError(f"the config.json of {model} is no object: fetch it again")
    given = {key: config.get(key) for key in (*_NEEDED, *_MAY_LACK)}
    given = {key: value for key, value in given.items() if value is not None or key in _NEEDED}
    missing = [key for key, value in given.items() if not (type(value) is int and value > 0)]
    experts = [key for key in _EXPERTS if config.get(key)]
    if missing or experts:
        why = (
            f"no number above 0: {', '.join(missing)}" if missing else "it is a mixture of experts"
        )
        raise ConfigError(
            f"no memory can be estimated for {model} ({why}): that is known of plain decoders "
            "only, such as Llama, Qwen and Mistral"
        )
    layers, hidden, inner, heads, vocab = (int(config[key]) for key in _NEEDED)
    return Shape(
        layers=layers,
        hidden=hidden,
        inner=inner,
        heads=heads,
        kv_heads=int(config.get("num_key_value_heads") or heads),
        head=int(config.get("head_dim") or hidden // heads),
        vocab=vocab,
        tied=bool(config.get("tie_word_embeddings", False)),
        normed=config.get("model_type") == "qwen3",
    )


def crewed(team: Mapping[str, Member], settings: LearnConfig) -> list[dict[str, Member]]:
    """The agents that use one copy of weights together: those of one base or, where all weights are
    trained and not shared, each alone."""
    if settings.method == "full" and not settings.shared:
        return [{role: member} for role, member in team.items()]
    models = dict.fromkeys(member.model for member in team.values())
    return [{role: m for role, m in team.items() if m.model == model} for model in models]
