"""Tiny GGUF files with random weights, as llama.cpp stores them."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import gguf
import numpy as np
from gguf import GGMLQuantizationType as Type
from numpy.typing import NDArray

from tests.backends.local.tiny import CONTEXT, TEMPLATE, Kind, tiny_model

_RAW = {"ffn_down": Type.Q6_K, "ffn_gate": Type.Q4_K}
_QUANTIZED = {"token_embd": Type.Q5_0, "attn_q": Type.Q8_0, "ffn_up": Type.Q4_1}
_SCALES = {Type.Q4_K: slice(0, 4), Type.Q6_K: slice(208, 210)}
"""The float16 numbers in a block, which random bytes would make infinite."""


def tiny_gguf(
    path: Path,
    kind: Kind = "llama",
    hidden: int = 32,
    rounded: bool = False,
    architecture: str = "",
) -> Path:
    """The tiny model of that kind, with its tokenizer and chat template: in float32 or, with
    `rounded`, in types of 4 to 8 bits, of which those that gguf can't make hold random blocks."""
    model: Any = tiny_model(kind, hidden=hidden)
    writer = gguf.GGUFWriter(path, architecture or kind)
    writer.add_block_count(2)
    writer.add_context_length(CONTEXT)
    writer.add_embedding_length(hidden)
    writer.add_feed_forward_length(2 * hidden)
    writer.add_head_count(4)
    writer.add_head_count_kv(2)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-6)
    if kind == "llama":  # as some files have it, and others not
        writer.add_vocab_size(300)
    _add_tokenizer(writer, "qwen2" if kind == "qwen2" else "smollm")
    names = gguf.get_tensor_name_map(gguf.MODEL_ARCH[kind.upper()], 2)
    for name, weight in model.state_dict().items():
        if name == "lm_head.weight":  # tied
            continue
        stored = cast(str, names.get_name(name, try_suffixes=(".weight", ".bias")))
        if kind == "llama" and ("q_proj" in name or "k_proj" in name):  # it pairs rotated halves
            heads = 4 if "q_proj" in name else 2
            weight = weight.view(heads, 2, -1, hidden).swapaxes(1, 2).reshape(weight.shape)
        _add(writer, stored, weight.contiguous().numpy(), rounded)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def _add(writer: gguf.GGUFWriter, name: str, values: NDArray[Any], rounded: bool) -> None:
    part = name.split(".")[-2]
    if rounded and (raw := _RAW.get(part)):
        block, size = gguf.GGML_QUANT_SIZES[raw]
        random = np.random.default_rng(len(name))
        blocks = random.integers(0, 256, (values.size // block, size), np.uint8)
        blocks[:, _SCALES[raw]] = np.full(_SCALES[raw].stop // 2, 0.01, np.float16).view(np.uint8)[
            : _SCALES[raw].stop - _SCALES[raw].start
        ]
        writer.add_tensor(name, blocks.reshape(len(values), -1), raw_dtype=raw)
    elif rounded and name.endswith(".weight") and (kind := _QUANTIZED.get(part)):
        writer.add_tensor(name, gguf.quantize(values, kind), raw_dtype=kind)
    else:
        writer.add_tensor(name, values)


def _add_tokenizer(writer: gguf.GGUFWriter, splits: str) -> None:
    letters = [chr(33 + number) for number in range(94)]
    words = ["<|pad|>", "<|im_start|>", "<|im_end|>", "<|endoftext|>", *letters, "ab"]
    words += [f"<{number}>" for number in range(300 - len(words))]
    writer.add_tokenizer_model("gpt2")
    writer.add_token_list(words)
    writer.add_token_types([3, 3, 3, 3] + [1] * 296)
    writer.add_tokenizer_pre(splits)
    writer.add_token_merges(["a b"])
    writer.add_eos_token_id(2)
    writer.add_bos_token_id(1)
    writer.add_pad_token_id(0)
    writer.add_chat_template(TEMPLATE)
