"""GPUs that can be rented: memory, speed and price, for estimates on machines that have none.

Memory, bandwidth and arithmetic are from NVIDIA's data sheets, arithmetic without sparsity. Prices
are facts of one day at one place: `--gpu-price` replaces them.
"""

from __future__ import annotations

from dataclasses import dataclass

from orchestry.core.errors import ConfigError, unknown


@dataclass(frozen=True, slots=True)
class Gpu:
    """One kind of GPU."""

    name: str
    """As `--gpu` takes it."""
    memory_gb: float
    """In units of 1e9 bytes, as its name has it."""
    bandwidth: float
    """Bytes per second of its memory."""
    flops: float
    """Operations per second in bfloat16 on tensor cores; in float32 for one without bfloat16."""
    bfloat16: bool = True
    """Whether it computes in bfloat16."""
    usd: float | None = None
    """Dollars per hour; None: no price was found that has a date and a source."""
    price_from: str = ""
    """Whose price, and the day on which it was read."""


_SECURE, _MARCH = "RunPod, secure cloud, 2026-11-09", "RunPod, community cloud, March 2026"
_OCTOBER = "RunPod, 2026-10-07"
# Sources: runpod.io/pricing as transcribed on 2026-11-09 (datareceipts/data-receipts,
# 109-gpu-pricing/vendors.json) and 2026-10-07 (api-evangelist/runpod, runpod-plans-pricing.yml);
# deploybase.ai/articles/runpod-gpu-pricing, March 2026; Lambda's as in compare.json of the first.
GPUS = (
    Gpu("t4", 16, 320e9, 8.1e12, bfloat16=False),
    Gpu("l4", 24, 300e9, 121e12, usd=0.44, price_from=_MARCH),
    Gpu("rtx4090", 24, 1008e9, 165e12, usd=0.34, price_from=_MARCH),
    Gpu("a100-40gb", 40, 1555e9, 312e12, usd=1.99, price_from="Lambda, 2026-11-16"),
    Gpu("l40s", 48, 864e9, 362e12, usd=0.79, price_from=_MARCH),
    Gpu("a100", 80, 2039e9, 312e12, usd=1.79, price_from=_SECURE),
    Gpu("h100", 80, 3350e9, 989e12, usd=3.99, price_from=_SECURE),
    Gpu("h200", 141, 4800e9, 989e12, usd=4.59, price_from=_OCTOBER),
    Gpu("b200", 180, 8000e9, 2250e12, usd=6.79, price_from=_OCTOBER),
)
"""By memory."""


def gpu_named(name: str) -> Gpu:
    """The GPU of that name; raises ConfigError for one that the table lacks."""
    wanted = name.lower().replace(" ", "")
    if found := next((one for one in GPUS if one.name == wanted), None):
        return found
    raise ConfigError(unknown("GPU", name, [one.name for one in GPUS]))


def gpu_like(device: str, memory_gb: float) -> Gpu | None:
    """The table's row for a device as its driver names it, such as `NVIDIA A100-SXM4-80GB`."""
    words = device.lower().replace(" ", "").replace("-", "")
    kinds = [one for one in GPUS if one.name.partition("-")[0] in words]
    near = [one for one in kinds if abs(one.memory_gb / memory_gb - 1) < 0.2]
    return max(near, key=lambda one: len(one.name), default=None)
