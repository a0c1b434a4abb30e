"""The console's streams: they may fail, and nothing of others that is printed steers a terminal."""

from __future__ import annotations

import os
from typing import Any, TextIO

from orchestry.report.words import tame


class Lenient:
    """A text stream that falls silent at its first error of the given kind.

    What is written is tamed: all output of the command line comes through here.
    """

    def __init__(self, stream: TextIO, kind: type[OSError]) -> None:
        self._stream, self._kind = stream, kind

    @property
    def styled(self) -> Styled:
        """The same stream for our own colours and bars, which a Console made of tamed text."""
        return Styled(self._stream, self._kind)

    def write(self, text: str) -> int:
        self._write(tame(text))
        return len(text)

    def flush(self) -> None:
        try:
            self._stream.flush()
        except self._kind:
            self._silence()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._stream, name)

    def _write(self, text: str) -> None:
        try:
            self._stream.write(text)
        except self._kind:
            self._silence()

    def _silence(self) -> None:
        """Sends the rest nowhere: what is buffered would else fail again when Python exits."""
        nowhere = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nowhere, self._stream.fileno())
        except ValueError:
            pass  # closed, or no file: nothing is left that could fail
        finally:
            os.close(nowhere)


class Styled(Lenient):
    """Writes as it is told."""

    def write(self, text: str) -> int:
        self._write(text)
        return len(text)
