"""A cache of keys and values whose rows can be repeated, dropped and trimmed while it grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch
from transformers.cache_utils import Cache, DynamicLayer

ROOM = 64
"""Tokens by which a layer grows at a time."""
_Layer: Any = DynamicLayer  # the library's methods have no types


class RoomyLayer(_Layer):  # type: ignore[misc]
    """One layer's keys and values, (R, heads, tokens, dim): views of tensors with room behind.

    The library's layer concatenates, which copies everything at every token; this one copies once
    in ROOM tokens.
    """

    keys: Any
    values: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._rooms: tuple[torch.Tensor, torch.Tensor] | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends (R, heads, new, dim) to both; all keys and all values."""
        start = self.get_seq_length()
        if start == 0:
            super().update(key_states, value_states, *args, **kwargs)
            return self.keys, self.values
        end = start + key_states.shape[-2]
        if self._rooms is None or end > self._rooms[0].shape[-2]:
            self._rooms = _roomy(self.keys, end + ROOM), _roomy(self.values, end + ROOM)
        keys, values = self._rooms
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def select(self, index_R: torch.Tensor, start: int) -> None:
        """Keeps these rows, in this order and as often as named, from token `start` on."""
        self.keys = self.keys[:, :, start:].index_select(0, index_R)
        self.values = self.values[:, :, start:].index_select(0, index_R)
        self._rooms = None


def roomy_cache() -> Cache:
    """An empty cache of RoomyLayers, one for each layer that asks for it."""
    return Cache(layer_class_to_replicate=RoomyLayer)


def joined(parts: Sequence[Cache], width: int) -> Cache:
    """The rows of all caches in one, each with room on its left up to `width` tokens.

    Takes the parts' layers one by one, so that no more than one layer is there twice.
    """
    whole = parts[0]
    for number in range(len(whole.layers)):
        first, *rest = taken = [cast(Any, part).layers[number] for part in parts]
        first.keys = _padded([one.keys for one in taken], width)
        first.values = _padded([one.values for one in taken], width)
        for one in rest:
            one.keys = one.values = None
    return whole


def _padded(states: Sequence[torch.Tensor], width: int) -> torch.Tensor:
    """(R, heads, width, dim): all rows, with zeros before those that have fewer tokens."""
    _, heads, _, size = states[0].shape
    found = states[0].new_zeros((sum(map(len, states)), heads, width, size))
    first = 0
    for part in states:
        end = first + len(part)
        found[first:end, :, width - part.shape[-2] :] = part
        first = end
    return found


def _roomy(states: torch.Tensor, tokens: int) -> torch.Tensor:
    rows, heads, filled, size = states.shape
    room = states.new_empty((rows, heads, tokens, size))
    room[:, :, :filled] = states
    return room
