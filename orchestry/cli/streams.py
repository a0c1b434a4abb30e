"""The console's streams, which may fail: whoever reads them is no part of a run."""

from __future__ import annotations

import os
from typing import Any, TextIO


class Lenient:
    """A text stream that falls silent at its first error of the given kind."""

    def __init__(self, stream: TextIO, kind: type[OSError]) -> None:
        self._stream, self._kind = stream, kind

    def write(self, text: str) -> int:
        try:
            return self._stream.write(text)
        except self._kind:
            self._silence()
            return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except self._kind:
            self._silence()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _silence(self) -> None:
        """Sends the rest nowhere: what is buffered would else fail again when Python exits."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        except ValueError:
            pass  # closed, or no file: nothing is left that could fail
        finally:
            os.close(nowhere)
