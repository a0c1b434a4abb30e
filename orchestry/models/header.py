"""What a GGUF file says of its model, and where its tensors lie.

Read in a tenth of a second. The package gguf makes arrays of each token of the vocabulary, which
takes 14 s of CPU for Qwen's.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

_HEAD = struct.Struct("<4sIQQ")
"""Magic, version, numbers of tensors and fields."""
_SCALARS = dict(zip((0, 1, 2, 3, 4, 5, 6, 7, 10, 11, 12), "BbHhIif?Qqd", strict=True))
_UINT32, _STRING, _ARRAY = 4, 8, 9
_F32 = 0
_ALIGNMENT = 32
_SHORT = 1 << 16
"""Bytes of a field; a vocabulary has more."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A tensor of a file."""

    kind: int
    """GGML's number of its type."""
    shape: tuple[int, ...]
    """As numpy has it: rows first."""
    start: int
    """Its first byte."""

    @property
    def numbers(self) -> int:
        """How many it holds."""
        return math.prod(self.shape)


@dataclass(frozen=True, slots=True)
class Header:
    """All but the weights."""

    fields: Mapping[str, Any]
    """An array of texts is its length."""
    tensors: Mapping[str, Stored]
    raw: Mapping[str, bytes]
    """The fields as they stand in the file, without long arrays."""

    @property
    def architecture(self) -> str:
        """As llama.cpp names it, such as `qwen2`."""
        return str(self.fields["general.architecture"])

    @property
    def vocabulary(self) -> int:
        """Rows of the embeddings."""
        return self.tensors["token_embd.weight"].shape[0]

    def bare(self) -> bytes:
        """A GGUF file with the same fields, but without a vocabulary and with tensors of one number
        each: all that a config is made of."""
        name = f"{self.architecture}.vocab_size"
        size = _text(name) + struct.pack("<II", _UINT32, self.vocabulary)
        fields = {**self.raw, name: size}  # also in place of the file's own
        one = struct.pack("<IQIQ", 1, 1, _F32, 0)
        tensors = b"".join(_text(name) + one for name in self.tensors)
        head = _HEAD.pack(b"GGUF", 3, len(self.tensors), len(fields))
        whole = head + b"".join(fields.values()) + tensors
        return whole + bytes(-len(whole) % _ALIGNMENT + 4)


def read_header(path: Path) -> Header:
    """The header of a GGUF file. Raises OSError, and ValueError if it is not whole or of another
    version."""
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as data:
        try:
            return _Reader(data).header()
        except (struct.error, KeyError) as error:
            raise ValueError(f"its header is not whole ({error})") from None


class _Reader:
    def __init__(self, data: mmap.mmap) -> None:
        self._data, self._at = data, 0

    def header(self) -> Header:
        _, version, tensors, count = self._take(_HEAD)
        if version not in (2, 3):
            raise ValueError(f"version {version} of the format, which is not read here")
        fields, raw = dict[str, Any](), dict[str, bytes]()
        for _ in range(count):
            begin, name = self._at, self._text()
            fields[name] = self._value(self._number("I"))
            if self._at - begin < _SHORT:
                raw[name] = self._data[begin : self._at]
        found = {self._text(): self._tensor() for _ in range(tensors)}
        alignment = fields.get("general.alignment", _ALIGNMENT)
        first = -(-self._at // alignment) * alignment
        return Header(fields, {n: Stored(k, s, first + at) for n, (k, s, at) in found.items()}, raw)

    def _tensor(self) -> tuple[int, tuple[int, ...], int]:
        """Type, shape and place among the tensors."""
        shape = self._take(struct.Struct(f"<{self._number('I')}Q"))
        return self._number("I"), shape[::-1], self._number("Q")

    def _value(self, kind: int) -> Any:
        if kind == _STRING:
            return self._text()
        if kind != _ARRAY:
            return self._number(_SCALARS[kind])
        inner, length = self._number("I"), self._number("Q")
        if inner != _STRING:
            return self._take(struct.Struct(f"<{length}{_SCALARS[inner]}"))
        for _ in range(length):
            self._at += 8 + struct.unpack_from("<Q", self._data, self._at)[0]
        return length

    def _text(self) -> str:
        length = self._number("Q")
        self._at += length
        return self._data[self._at - length : self._at].decode()

    def _number(self, form: str) -> Any:
        return self._take(struct.Struct(f"<{form}"))[0]

    def _take(self, form: struct.Struct) -> tuple[Any, ...]:
        found = form.unpack_from(self._data, self._at)
        self._at += form.size
        return found


def _text(text: str) -> bytes:
    data = text.encode()
    return struct.pack("<Q", len(data)) + data
