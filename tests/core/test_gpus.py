"""The table of GPUs: each price has a source and a day, and drivers' names are found in it."""

from __future__ import annotations

import pytest

from orchestry.core.errors import ConfigError
from orchestry.core.gpus import GPUS, gpu_like, gpu_named


def test_a_price_has_a_source_and_a_day() -> None:
    for one in GPUS:
        assert (one.usd is None) == (not one.price_from)
        assert one.usd is None or "2026" in one.price_from
    assert [one.memory_gb for one in GPUS] == sorted(one.memory_gb for one in GPUS)


def test_a_name_is_found_and_another_is_an_error() -> None:
    assert gpu_named("A100") is gpu_named("a100")
    assert gpu_named("RTX 4090").memory_gb == 24
    with pytest.raises(ConfigError, match="unknown GPU 'a1000'"):
        gpu_named("a1000")


@pytest.mark.parametrize(
    ("device", "memory_gb", "name"),
    [
        ("NVIDIA A100-SXM4-80GB", 85.1, "a100"),
        ("NVIDIA A100-SXM4-40GB", 42.3, "a100-40gb"),
        ("NVIDIA GeForce RTX 4090", 25.3, "rtx4090"),
        ("Tesla T4", 15.8, "t4"),
        ("NVIDIA H200", 150.0, "h200"),
        ("NVIDIA L40S", 47.7, "l40s"),
        ("NVIDIA L4", 23.7, "l4"),
    ],
)
def test_a_drivers_name_is_found_in_the_table(device: str, memory_gb: float, name: str) -> None:
    assert (found := gpu_like(device, memory_gb)) is not None
    assert found.name == name


def test_an_unknown_device_has_no_row() -> None:
    assert gpu_like("NVIDIA GeForce GTX 1080", 8.5) is None
