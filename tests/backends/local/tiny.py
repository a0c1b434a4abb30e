"""Tiny language models with random weights, saved as folders that transformers loads."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Literal, cast

import torch
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import (
    GPTNeoXConfig,
    GPTNeoXForCausalLM,
    LlamaConfig,
    LlamaForCausalLM,
    Phi3Config,
    Phi3ForCausalLM,
    PreTrainedModel,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
)

Kind = Literal["llama", "qwen2", "phi3", "gpt_neox"]
PAD, BEGIN, END = "<|pad|>", "<|im_start|>", "<|im_end|>"
CONTEXT = 512
"""Tokens that the tiny models take."""
TEMPLATE = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


def tiny_folder(path: Path, kind: Kind = "llama", seed: int = 0, hidden: int = 32) -> Path:
    """Saves a 2-layer model of that hidden size and its byte-level tokenizer in `path`.

    The weights are a function of the arguments. One byte is one token; the EOS is `END`.
    """
    tiny_model(kind, seed, hidden).save_pretrained(path)
    tiny_tokenizer().save_pretrained(path)
    return path


def tiny_model(kind: Kind = "llama", seed: int = 0, hidden: int = 32) -> PreTrainedModel:
    """The model alone, float32, in evaluation mode."""
    tokenizer = tiny_tokenizer()
    sizes: dict[str, Any] = {
        "vocab_size": 300,  # more than the tokenizer has, as most models do
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "max_position_embeddings": CONTEXT,
        "initializer_range": 0.2,  # as peaked as a trained model is: 0.02 would be near uniform
        "tie_word_embeddings": True,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model: Any = _MODELS[kind](sizes)
    return cast(PreTrainedModel, model.eval())


_MODELS: dict[Kind, Callable[[dict[str, Any]], Any]] = {
    "llama": lambda sizes: LlamaForCausalLM(LlamaConfig(**sizes)),
    "qwen2": lambda sizes: Qwen2ForCausalLM(Qwen2Config(**sizes)),
    "phi3": lambda sizes: Phi3ForCausalLM(Phi3Config(**sizes)),
    "gpt_neox": lambda sizes: GPTNeoXForCausalLM(GPTNeoXConfig(**sizes)),
}
"""The last two have fused projections under names of their own."""


def tiny_tokenizer() -> PreTrainedTokenizerFast:
    """Bytes as tokens, after the three special ones; a chat template; left padding."""
    words = [PAD, BEGIN, END, *sorted(pre_tokenizers.ByteLevel.alphabet())]
    tokenizer = Tokenizer(models.BPE({word: number for number, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens([PAD, BEGIN, END])
    build: Any = PreTrainedTokenizerFast  # transformers leaves it untyped
    fast = build(
        tokenizer_object=tokenizer,
        eos_token=END,
        pad_token=PAD,
        additional_special_tokens=[BEGIN],
        padding_side="left",
        model_max_length=CONTEXT,
    )
    fast.chat_template = TEMPLATE
    return cast(PreTrainedTokenizerFast, fast)
