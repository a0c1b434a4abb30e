"""The models of the GPU benchmark, and how a contestant on one device is measured."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch  # noqa: TID253 - nothing here can be had without it

from benchmarks.peers.reference_work import peak_bytes

ResultT = TypeVar("ResultT")
PAD, NEVER = "<|pad|>", "<|never|>"
"""The end token lies beyond the model's vocabulary, so that every answer is full length."""
SHAPES: dict[str, dict[str, Any]] = {
    "tiny": {
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "vocab_size": 512,
    },
    "135M": {
        "hidden_size": 576,
        "intermediate_size": 1536,
        "num_hidden_layers": 30,
        "num_attention_heads": 9,
        "num_key_value_heads": 3,
        "vocab_size": 49_152,
    },
    "1.5B": {
        "hidden_size": 1536,
        "intermediate_size": 8960,
        "num_hidden_layers": 28,
        "num_attention_heads": 12,
        "num_key_value_heads": 2,
        "vocab_size": 151_936,
    },
}
"""Qwen2 models; 1.5B is Qwen2.5-Coder-1.5B's, 135M has SmolLM2's sizes."""
_TEMPLATE = (
    "{% for message in messages %}{{ message['role'] }}\n{{ message['content'] }}\n{% endfor %}"
    "{% if add_generation_prompt %}assistant\n{% endif %}"
)


@dataclass(frozen=True, slots=True)
class Measured:
    """One contestant: a step of a team of two."""

    device: str
    generate_s: float
    """Wall seconds until all answers were drawn."""
    update_s: float
    """Wall seconds of gradients and optimizer."""
    tokens: int
    """Drawn."""
    peak_bytes: int
    """Most memory: allocated on the GPU, or resident on a CPU."""
    prompt_tokens: int
    """Of all prompts together."""

    def print(self) -> None:
        """As JSON, for the process that started this one."""
        print(json.dumps(asdict(self)))


def make(shape: str, folder: Path, dtype: torch.dtype) -> Path:
    """A model of random weights with a tokenizer of bytes.

    Its answers are about as peaked as a trained model's, on which the cost of top-p depends: the
    logits at temperature 0.8 have a standard deviation of 6.
    """
    from transformers import Qwen2Config, Qwen2ForCausalLM

    torch.manual_seed(0)
    config = Qwen2Config(
        **SHAPES[shape],
        initializer_range=0.2,  # or a token's own embedding would outweigh all layers
        max_position_embeddings=32_768,
        tie_word_embeddings=True,
        rope_theta=1e6,
        bos_token_id=None,
        eos_token_id=None,
        pad_token_id=None,
    )
    model: Any = Qwen2ForCausalLM(config)
    model.get_input_embeddings().weight.data.normal_(0, 4.8 / config.hidden_size**0.5)
    model.to(dtype)
    tokenizer = _tokenizer(config.vocab_size)
    model.generation_config.eos_token_id = tokenizer.eos_token_id
    model.generation_config.pad_token_id = tokenizer.pad_token_id
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def _tokenizer(vocab_size: int) -> Any:
    """A byte is a token; the end token is the first that the model lacks."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = {word: n for n, word in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    tokenizer = Tokenizer(models.BPE({**words, PAD: len(words), NEVER: vocab_size}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    build: Any = PreTrainedTokenizerFast
    fast = build(tokenizer_object=tokenizer, eos_token=NEVER, pad_token=PAD, padding_side="left")
    fast.chat_template = _TEMPLATE
    return fast


def timed(device: torch.device, work: Callable[[], ResultT]) -> tuple[ResultT, float]:
    """What it comes to, and the wall seconds until the device has done all of it."""
    _wait(device)
    began = time.perf_counter()
    found = work()
    _wait(device)
    return found, time.perf_counter() - began


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def name_of(device: torch.device) -> str:
    """The GPU's name, or that it is a CPU."""
    return torch.cuda.get_device_name(device) if device.type == "cuda" else "CPU"


def peak(device: torch.device) -> int:
    """See Measured.peak_bytes."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else peak_bytes()
