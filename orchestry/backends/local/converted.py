"""A GGUF file as transformers takes a model: converted once, and kept in the user's cache.

Config and tokenizer are made by transformers. The weights are written one after the other, so that
memory holds one of them. They are written in the type that they are computed in, so that a process
maps the file and shares its memory with others: in float32, since most are not exact in a half
precision (docs/benchmarks.md#a-gguf-file-converted-for-training) and the embedded provider uses the
exact ones, or rounded to bfloat16, as torch rounds them.
"""

from __future__ import annotations

import json
import math
import os
import struct
import zlib
from collections.abc import Callable, Mapping
from contextlib import redirect_stderr
from dataclasses import dataclass
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import IO, TYPE_CHECKING, Any, cast

from filelock import FileLock

from orchestry.core.errors import ConfigError, OrchestryError, reason
from orchestry.core.fetch import Progress, need_room, progress_bar
from orchestry.core.files import cache, new_folder
from orchestry.models.gguf import Gguf
from orchestry.models.header import Header, Stored, read_header

if TYPE_CHECKING:
    from numpy.typing import NDArray

_FORMAT = 2
"""Version of the converted folder; raised when older folders must not be used."""
_SUMS = "checksums.json"
_AT_ONCE = 1 << 20
"""Numbers that are made at a time: as many as a cache holds."""
_BYTES = {False: 4, True: 2}
"""Of a number in float32, and in bfloat16."""
_ENDS = {"qwen2": "<|endoftext|>"}
"""By the file's name of a tokenizer: a token that ends answers too, as the model's makers say. GGUF
files name one only."""


def converted_folder(
    weights: Gguf, environ: Mapping[str, str] = os.environ, half: bool = False
) -> Path | None:
    """Where a GGUF file's model lies once it was converted, `half`: to bfloat16; None while its
    sha256 is not known."""
    if (sha256 := weights.sha256) is None:
        return None
    name = Path(weights.name.rpartition(":")[2]).stem
    return cache(environ) / "converted" / f"{name}-{sha256}-v{_FORMAT}{'-bf16' * half}"


def converted(weights: Gguf, environ: Mapping[str, str] = os.environ, half: bool = False) -> Path:
    """The folder with the GGUF's model as transformers saves it, made at the first call.

    Written whole or not at all; other processes wait for the one that converts. Raises ConfigError
    for an architecture that transformers can't read, and OrchestryError if the folder can't be
    written or is damaged.
    """
    folder = converted_folder(weights, environ, half)
    if folder is None or not folder.is_dir():
        gguf = weights.fetch()
        folder = cast(Path, converted_folder(weights, environ, half))
        try:
            folder.parent.mkdir(parents=True, exist_ok=True)
            with FileLock(f"{folder}.lock"):
                if not folder.is_dir():  # another process may have been first
                    _convert(gguf, folder, half)
        except OSError as error:
            raise OrchestryError(
                f"the converted model can't be written to {folder.parent} ({reason(error)}): make "
                "room there, or set XDG_CACHE_HOME to another folder"
            ) from None
    try:
        sums = json.loads((folder / _SUMS).read_text(encoding="utf-8"))
        sound = bool(sums) and all(_checksum(folder / file) == sums[file] for file in sums)
    except (OSError, ValueError):
        sound = False
    if not sound:
        raise OrchestryError(
            f"{folder} is damaged: delete it, so that the model is converted again"
        )
    return folder


def _convert(gguf: Path, folder: Path, half: bool) -> None:
    from orchestry.backends.local.model import quiet, require_local

    require_local()
    try:
        header = read_header(gguf)
        numbers = sum(one.numbers for one in header.tensors.values())
        need_room(folder.parent, _BYTES[half] * numbers)
        with new_folder(folder) as part, progress_bar(f"Converting {gguf.name} (once)") as show:
            with quiet():
                _save(header, gguf, part, half, show)
            sums = {file.name: _checksum(file) for file in sorted(part.iterdir())}
            (part / _SUMS).write_text(json.dumps(sums), encoding="utf-8")
    except (ValueError, KeyError, NotImplementedError) as error:
        raise ConfigError(
            f"the model {gguf} can't be converted for backend local ({reason(error)}): choose "
            "another GGUF file, such as one of `orchestry models list`"
        ) from error


def _save(header: Header, gguf: Path, part: Path, half: bool, progress: Progress) -> None:
    """Writes config, weights and tokenizer."""
    import torch

    planned = _planned(header, part)
    if planned is None:
        model = _loaded(gguf)
        (model.to(torch.bfloat16) if half else model).save_pretrained(part)
    else:
        model, weights = planned
        model.config.dtype = torch.bfloat16 if half else torch.float32
        model.config.save_pretrained(part)
        with (part / "model.safetensors").open("wb") as file:
            _save_weights(weights, gguf, file, half, progress)
    tokenizer = _tokenizer(header, gguf, model.config.model_type)
    tokenizer.save_pretrained(part)
    drawing, splits = model.generation_config, header.fields.get("tokenizer.ggml.pre")
    if splits in _ENDS:
        more = tokenizer.convert_tokens_to_ids(_ENDS[splits])
        drawing.eos_token_id = [drawing.eos_token_id, more]
    drawing.save_pretrained(part)


def _planned(header: Header, part: Path) -> tuple[Any, dict[str, _Weight]] | None:
    """The model without weights, and where each of them is stored. None where transformers has to
    load the file whole: its tables lack some tensors, or are another version's."""
    experts = any("_exps." in name for name in header.tensors)
    try:
        from transformers.integrations import gguf as untyped

        if experts or header.architecture in cast(Any, untyped).GGUF_CONFIG_ARCHS:
            return None
        model = _empty(header, part)
        return model, _by_name(header, model)
    except (ImportError, AttributeError, TypeError):
        return None


def _loaded(gguf: Path) -> Any:
    import torch
    from transformers import AutoModelForCausalLM, GgufConfig

    loader: Any = AutoModelForCausalLM
    with redirect_stderr(StringIO()):  # a bar that transformers has no switch for
        return loader.from_pretrained(
            gguf.parent,
            gguf_file=gguf.name,
            dtype=torch.float32,
            quantization_config=GgufConfig(dequantize=True),
        )


def _empty(header: Header, part: Path) -> Any:
    """The model without weights. transformers reads its config from a file without vocabulary: of
    the whole one it makes arrays for 20 s."""
    import torch
    from transformers import AutoConfig, AutoModelForCausalLM

    configs: Any = AutoConfig
    models: Any = AutoModelForCausalLM
    bare = part / "bare.gguf"
    bare.write_bytes(header.bare())
    try:
        config = configs.from_pretrained(part, gguf_file=bare.name)
    finally:
        bare.unlink()
    config.vocab_size = header.vocabulary
    with torch.device("meta"):
        model = models.from_config(config, dtype=torch.float32)
    config.architectures = [type(model).__name__]
    return model


@dataclass(frozen=True, slots=True)
class _Weight:
    """One of the model's weights: where it is stored, and its shape and order of rows there."""

    stored: Stored
    shape: tuple[int, ...]
    process: Callable[[NDArray[Any]], NDArray[Any]]


def _by_name(header: Header, model: Any) -> dict[str, _Weight]:
    """The weights by transformers' tables of names, and of what llama.cpp changes in them."""
    from transformers import modeling_gguf_pytorch_utils as untyped

    tables: Any = untyped
    kind = tables.TENSOR_PROCESSORS.get(header.architecture, tables.TensorProcessor)
    processor = kind(config=model.config.to_dict())
    whole = SimpleNamespace(
        config=model.config, state_dict=model.state_dict, named_children=lambda: ()
    )  # its parts are asked for their names too, each with a table of all layers: 300 of them
    names = tables.get_gguf_hf_weights_map(whole, processor)
    if not header.tensors.keys() <= names.keys():
        names = tables.get_gguf_hf_weights_map(model, processor)
    shapes = {name: tuple(one.shape) for name, one in model.state_dict().items()}

    def processed(name: str) -> Callable[[NDArray[Any]], NDArray[Any]]:
        return lambda values: processor.process(weights=values, name=name).weights

    return {
        names[name]: _Weight(stored, shapes[names[name]], processed(name))
        for name, stored in header.tensors.items()
        if name in names
    }


def _save_weights(
    weights: Mapping[str, _Weight], gguf: Path, file: IO[bytes], half: bool, progress: Progress
) -> None:
    """Writes them as safetensors."""
    import numpy as np

    spec, size = dict[str, Any](__metadata__={"format": "pt"}), 0
    for name, one in weights.items():
        end = size + _BYTES[half] * math.prod(one.shape)
        kind = "BF16" if half else "F32"
        spec[name] = {"dtype": kind, "shape": one.shape, "data_offsets": (size, end)}
        size = end
    head = json.dumps(spec).encode()
    file.write(struct.pack("<Q", len(head)) + head)
    begin, data = file.tell(), np.memmap(gguf, mode="r")
    room = np.empty(max(one.stored.numbers for one in weights.values()), np.float32)
    for name, one in weights.items():
        values = one.process(_dequantized(data, one.stored, room))
        if values.shape != one.shape:
            raise ValueError(f"{name} has the shape {values.shape}, and the model {one.shape}")
        values = np.ascontiguousarray(values, "<f4")
        file.write((_rounded(values) if half else values).data)
        progress(file.tell() - begin, size)


def _rounded(values: NDArray[Any]) -> NDArray[Any]:
    """The upper halves of float32 numbers, rounded to the nearest bfloat16 and ties to even."""
    import torch

    rounded: NDArray[Any] = torch.from_numpy(values).bfloat16().view(torch.uint16).numpy()
    return rounded


def _dequantized(data: NDArray[Any], stored: Stored, room: NDArray[Any]) -> NDArray[Any]:
    """A tensor in float32, in `room`; a few rows at a time, because gguf makes copies."""
    from gguf import GGML_QUANT_SIZES, GGMLQuantizationType, dequantize

    kind = GGMLQuantizationType(stored.kind)
    block, size = GGML_QUANT_SIZES[kind]
    wide = stored.shape[-1]
    stop = stored.start + stored.numbers // block * size
    if stop > len(data):
        raise ValueError(f"it is cut off: {len(data):,} bytes, and a tensor ends at {stop:,}")
    blocks = data[stored.start : stop].reshape(-1, wide // block * size)
    values = room[: stored.numbers].reshape(-1, wide)
    step = max(1, _AT_ONCE // wide)
    for row in range(0, len(blocks), step):
        some = blocks[row : row + step]
        made = _from_q5_0(some) if kind == GGMLQuantizationType.Q5_0 else dequantize(some, kind)
        values[row : row + step] = made
    return values.reshape(stored.shape)


def _from_q5_0(rows: NDArray[Any]) -> NDArray[Any]:
    """What gguf makes of blocks of a scale, 32 fifth bits and 16 bytes, in a quarter of its time:
    most weights of Qwen2.5-0.5B are of this type, since its rows are no multiples of 256."""
    import numpy as np

    blocks = rows.reshape(-1, 22)
    numbers = np.unpackbits(blocks[:, 2:6], axis=1, bitorder="little") << 4
    numbers[:, :16] |= blocks[:, 6:] & 15
    numbers[:, 16:] |= blocks[:, 6:] >> 4
    scales = blocks[:, :2].copy().view(np.float16).astype(np.float32)
    values: NDArray[Any] = (numbers.view(np.int8) - np.int8(16)) * scales
    return values.reshape(len(rows), -1)


def _tokenizer(header: Header, gguf: Path, kind: str) -> Any:
    """The GGUF's; transformers 5.24 forgets that SmolLM's takes digits one by one."""
    from tokenizers import pre_tokenizers
    from transformers import AutoTokenizer
    from transformers.models.auto.tokenization_auto import TOKENIZER_MAPPING_NAMES

    loader: Any = AutoTokenizer
    known = kind if TOKENIZER_MAPPING_NAMES.get(kind) else None  # else it reads the config again
    tokenizer = loader.from_pretrained(gguf.parent, gguf_file=gguf.name, tokenizer_type=known)
    if header.fields.get("tokenizer.ggml.pre") == "smollm":
        words = tokenizer.backend_tokenizer
        words.pre_tokenizer = pre_tokenizers.Sequence(
            [pre_tokenizers.Digits(individual_digits=True), words.pre_tokenizer]
        )
    return tokenizer


def _checksum(file: Path) -> int:
    """CRC-32: finds what a crash or a disk broke, at a third of SHA-256's time."""
    value = 0
    with file.open("rb") as source:
        while chunk := source.read(1 << 20):
            value = zlib.crc32(chunk, value)
    return value
