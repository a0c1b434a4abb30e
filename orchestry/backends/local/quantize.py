"""A base in 4 or 8 bits, by bitsandbytes: what it is loaded with, and what learning needs of it."""

from __future__ import annotations

import logging
from importlib import import_module
from typing import TYPE_CHECKING, Any, Literal

from orchestry.core.distribution import install
from orchestry.core.errors import ConfigError, reason

if TYPE_CHECKING:
    import torch

Quantize = Literal["nf4", "int8"]


def quantized(kind: Quantize, place: torch.device, precision: torch.dtype) -> dict[str, Any]:
    """Options of transformers' from_pretrained; raises ConfigError where a package is missing."""
    for package in ("bitsandbytes", "accelerate"):
        try:
            import_module(package)
        except ImportError as error:
            raise ConfigError(
                f"learn.quantize={kind} needs {package}, which can't be imported here "
                f"({reason(error)}): {install('quantize')}, or leave learn.quantize"
            ) from None
    from transformers import BitsAndBytesConfig

    build: Any = BitsAndBytesConfig
    config = (
        build(load_in_4bit=True, bnb_4bit_quant_type="nf4", bnb_4bit_compute_dtype=precision)
        if kind == "nf4"
        else build(load_in_8bit=True)
    )
    return {"quantization_config": config, "device_map": {"": place}}


def hush() -> None:
    """Before bitsandbytes is imported, which transformers does wherever it is installed: its word
    on a kernel that it lacks on CPUs, and a line a product, of a cast that 8-bit layers make."""
    for name in ("bitsandbytes.backends.cpu.ops", "bitsandbytes.autograd._functions"):
        logging.getLogger(name).setLevel(logging.ERROR)


def keep_gradients(model: Any) -> None:
    """Has a base on a CPU stay in a form that gradients pass through.

    On CPUs with AVX512-BF16, bitsandbytes 0.50 packs 4-bit weights anew when answers are drawn; the
    product of the packed ones has no gradient, and training goes on with wrong ones.
    """
    for module in model.modules():
        if hasattr(module, "support_avx512bf16_for_cpu"):
            module.support_avx512bf16_for_cpu = False
