"""Which base a team stands on, by the content of its files and not by where they lie."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path

from orchestry.backends.local.base import EMBEDDED, source_of
from orchestry.core.digests import folder_digest, text_digest
from orchestry.core.errors import ConfigError, reason
from orchestry.models import weights as models

_READ = (
    *("*.safetensors", "config.json", "generation_config.json", "adapter_config.json"),
    *("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json"),
    *("vocab.json", "vocab.txt", "merges.txt", "*.model", "chat_template.jinja"),
)
"""What transformers reads of a model's folder: weights, config and tokenizer."""


def base_digest(name: str, environ: Mapping[str, str] = os.environ) -> str | None:
    """Of the base of that name: "embedded", a folder, or a hub's id as it lies in the hub's cache.

    Equal for the same files at another place. None for a hub's id that was not fetched yet. Raises
    ConfigError for a folder that is not there or can't be read.
    """
    if name == EMBEDDED:  # converted from pinned weights, by way of libraries that leave traces
        return text_digest(models.SHA256)
    folder = Path(source_of(name))
    if not folder.is_dir():
        cached = _fetched(name)
        if cached is None:
            return None
        folder = cached
    try:
        return folder_digest(
            folder, {file for kind in _READ for file in folder.glob(kind)}, environ
        )
    except OSError as error:
        raise ConfigError(
            f"the files of the model {name} can't be read ({reason(error)}): correct the rights of "
            f"{folder}, or fetch it again"
        ) from None


def _fetched(name: str) -> Path | None:
    """Where a hub's model lies on this disk."""
    from huggingface_hub import try_to_load_from_cache

    try:
        found = try_to_load_from_cache(name, "config.json")
    except ValueError:  # no hub's name: who loads it says so
        return None
    return Path(found).parent if isinstance(found, str) else None
