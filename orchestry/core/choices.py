"""The choices of config keys and options.

This file imports little, because the command line's help needs it and must not wait for pydantic.
"""

from __future__ import annotations

from typing import Literal, get_args

Split = Literal["train", "dev", "test"]
BackendName = Literal["api", "local", "ppo"]
ProviderName = Literal["auto", "anthropic", "openai", "embedded", "local", "recorded", "fake"]
Proposal = Literal["rules", "prompts", "examples", "gold", "feedback"]

SPLITS: tuple[Split, ...] = get_args(Split)
PROVIDERS: tuple[ProviderName, ...] = get_args(ProviderName)
WITH_AUTHOR: tuple[Proposal, ...] = ("rules", "prompts", "examples")
"""What a run tries by default if a model can write."""
UNWRITTEN: tuple[Proposal, ...] = ("examples", "gold", "feedback")
"""Those for which no model is asked; the default if none can write."""
