"""Benchmarks are run by those who work on Orchestry: their tests are among the slow ones. Those
that train share a model."""

from __future__ import annotations

from pathlib import Path

import pytest

HERE = Path(__file__).parent


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if item.path.is_relative_to(HERE):
            item.add_marker(pytest.mark.slow)


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
