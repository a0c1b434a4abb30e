"""A model for the benchmarks that train."""

from __future__ import annotations

import pytest


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A tiny model whose context takes the tasks' prompts with examples, byte by byte."""
    pytest.importorskip("torch")
    from tests.backends.local.tiny import tiny_model, tiny_tokenizer

    folder, tiny = tmp_path_factory.mktemp("model"), tiny_model()
    tiny.config.max_position_embeddings = 8192
    tiny.save_pretrained(folder)
    tokenizer = tiny_tokenizer()
    tokenizer.model_max_length = 8192
    tokenizer.save_pretrained(folder)
    return str(folder)
