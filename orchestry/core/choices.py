"""The words that a config and the command line choose from.

Light on purpose: the command line's help needs them, and must not wait for pydantic.
"""

from __future__ import annotations

from typing import Literal, get_args

Split = Literal["train", "dev", "test"]
BackendName = Literal["api", "local"]
ProviderName = Literal["auto", "anthropic", "openai", "embedded", "recorded", "fake"]

SPLITS: tuple[Split, ...] = get_args(Split)
BACKENDS: tuple[BackendName, ...] = get_args(BackendName)
PROVIDERS: tuple[ProviderName, ...] = get_args(ProviderName)
