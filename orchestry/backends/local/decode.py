"""One step of decoding: the token that is drawn, the cache of keys and values and the masks that
it is computed with, and whether the answer ends there.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any, Literal, cast

import torch
from torch.nn.functional import pad
from transformers.cache_utils import Cache, DynamicLayer

from orchestry.core.errors import ConfigError, NotFiniteError

LIKELIEST = 256
"""Tokens looked at first. Sorting a whole vocabulary costs 20 times as much, and is needed only
where these do not reach top-p."""


_ROOM = 64
"""Tokens by which a layer grows at a time."""
_Layer: Any = DynamicLayer  # the library's methods have no types
Ending = Literal["end", "stop", "length"]
UNFINISHED = "\ufffd"
"""What a token decodes to that holds only some bytes of a character."""
FULL = "full_attention"
SLIDING = "sliding_attention"


def pick(
    logits_RV: torch.Tensor,
    temperature_R: torch.Tensor,
    top_p_R: torch.Tensor,
    uniform_R: torch.Tensor,
    top_k_R: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids_R, logprobs_R): the token that each uniform in [0, 1) falls on.

    The inverse of the cumulative distribution softmax(logits / temperature), tokens in falling
    order of probability, cut to the top_k likeliest (and those equal to the last of them; None: all
    tokens), then to the smallest set that holds at least top_p of these. The log-probabilities, in
    nats, are of softmax(logits / temperature) BEFORE both cuts: what a gradient can be taken of.
    Temperature 0 takes the likeliest token, with log-probability 0.

    Raises NotFiniteError where the logits are not finite.
    """
    greedy_R = temperature_R == 0
    scaled_RV = logits_RV / temperature_R.masked_fill(greedy_R, 1.0)[:, None]
    total_R = scaled_RV.logsumexp(-1)
    kept_RV, kept_R = scaled_RV, total_R
    if top_k_R is not None:
        kept_RV = _likeliest(scaled_RV, top_k_R)
        kept_R = kept_RV.logsumexp(-1)
    top_p_R = top_p_R.masked_fill(greedy_R, 1.0)
    uniform_R = uniform_R.masked_fill(greedy_R, 0.0)
    head = kept_RV.topk(min(LIKELIEST, kept_RV.shape[-1]))
    ids_R, reached_R = _invert(head.values, head.indices, kept_R, top_p_R, uniform_R)
    # `reached` is false for NaN too, so that finite logits cost no check of their own.
    short = (~reached_R).nonzero().squeeze(-1)
    if len(short) > 0:
        if not bool(total_R.isfinite().all()):
            raise NotFiniteError("the model's logits are not finite, so nothing can be drawn")
        full = kept_RV[short].sort(descending=True)
        ids_R[short], _ = _invert(
            full.values, full.indices, kept_R[short], top_p_R[short], uniform_R[short]
        )
    logprobs_R = scaled_RV.gather(-1, ids_R[:, None]).squeeze(-1) - total_R
    return ids_R, logprobs_R.masked_fill(greedy_R, 0.0)


def _likeliest(scaled_RV: torch.Tensor, top_k_R: torch.Tensor) -> torch.Tensor:
    """Minus infinity where a token is less likely than the row's top_k-th."""
    most = min(int(top_k_R.max()), scaled_RV.shape[-1])
    places_R1 = top_k_R.clamp(max=most)[:, None] - 1
    return scaled_RV.masked_fill(
        scaled_RV < scaled_RV.topk(most).values.gather(-1, places_R1), -torch.inf
    )


def _invert(
    scaled_RK: torch.Tensor,
    ids_RK: torch.Tensor,
    total_R: torch.Tensor,
    top_p_R: torch.Tensor,
    uniform_R: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor]:
    """(ids_R, whether these K tokens sufficed to tell), the K sorted by falling probability."""
    chance_RK = (scaled_RK - total_R[:, None]).exp()
    sum_RK = chance_RK.cumsum(-1)
    cut_R = top_p_R < 1
    # Without a cut the whole mass is 1, and only the tokens up to the uniform number are needed.
    inside_RK = (sum_RK - chance_RK < top_p_R[:, None]) | ~cut_R[:, None]
    inside_RK &= chance_RK > 0  # what top_k has cut off
    mass_R = torch.where(cut_R, (chance_RK * inside_RK).sum(-1), 1.0)
    place_R = (sum_RK <= (uniform_R * mass_R)[:, None]).sum(-1)
    # Rounding may put the last sum below the mass; and NaN is inside nothing.
    place_R = place_R.minimum(inside_RK.sum(-1) - 1).clamp(min=0)
    reached_R = sum_RK[:, -1] > torch.where(cut_R, top_p_R, uniform_R)
    return ids_RK.gather(-1, place_R[:, None]).squeeze(-1), reached_R


class RoomyLayer(_Layer):  # type: ignore[misc]
    """One layer's keys and values, (R, heads, tokens, dim): views of tensors with room behind.

    The library's layer concatenates, which copies everything at every token; this one copies once
    in _ROOM tokens.
    """

    keys: Any
    values: Any

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self._rooms: tuple[torch.Tensor, torch.Tensor] | None = None
        self._place_1: torch.Tensor | None = None

    def update(
        self, key_states: torch.Tensor, value_states: torch.Tensor, *args: Any, **kwargs: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Appends (R, heads, new, dim) to both; all keys and all values, and after `fix` the room
        behind them too."""
        if self._place_1 is not None:
            self.keys.index_copy_(2, self._place_1, key_states)
            self.values.index_copy_(2, self._place_1, value_states)
            return self.keys, self.values
        start = self.get_seq_length()
        if start == 0:
            super().update(key_states, value_states, *args, **kwargs)
            return self.keys, self.values
        end = start + key_states.shape[-2]
        if self._rooms is None or end > self._rooms[0].shape[-2]:
            self._rooms = _roomy(self.keys, end + _ROOM), _roomy(self.values, end + _ROOM)
        keys, values = self._rooms
        keys[:, :, start:end] = key_states
        values[:, :, start:end] = value_states
        self.keys, self.values = keys[:, :, :end], values[:, :, :end]
        return self.keys, self.values

    def fix(self, place_1: torch.Tensor, columns: int) -> None:
        """From now on both tensors stay where they are, with so many columns, of zeros where there
        are no tokens yet; the next one goes to the column that `place_1` holds then."""
        room = (0, 0, 0, columns - self.keys.shape[-2])
        self.keys, self.values = pad(self.keys, room), pad(self.values, room)
        self._place_1 = place_1

    def select(self, index_R: torch.Tensor, start: int, end: int) -> None:
        """Keeps these rows, in this order and as often as named, and the tokens from `start` to
        `end`; they can grow again."""
        self.keys = self.keys[:, :, start:end].index_select(0, index_R)
        self.values = self.values[:, :, start:end].index_select(0, index_R)
        self._rooms = self._place_1 = None

    def rearrange(self, columns_RT: torch.Tensor) -> None:
        """Keeps these tokens of each row, in this order; they can grow again."""
        _, heads, _, size = self.keys.shape
        index = columns_RT[:, None, :, None].expand(-1, heads, -1, size)
        self.keys, self.values = self.keys.gather(2, index), self.values.gather(2, index)
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


def copied(cache: Cache, index_R: torch.Tensor, width: int) -> Cache:
    """A cache of its own with these rows, as often as named, and their last `width` tokens."""
    made = roomy_cache()
    for number, layer in enumerate(cast(Any, cache).layers):
        states = (whole[:, :, -width:][index_R] for whole in (layer.keys, layer.values))
        made.update(*states, number)
    return made


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


def next_logits(
    model: Any,
    cache: Any,
    ids_RT: torch.Tensor,
    positions_RT: torch.Tensor,
    mask: torch.Tensor | None,
) -> torch.Tensor:
    """The logits (R, V) after the last of these tokens, which join the cache; `mask`: additive,
    (R, 1, T, all tokens)."""
    output = model(
        input_ids=ids_RT,
        attention_mask=mask,
        position_ids=positions_RT,
        cache=cache,
        use_cache=True,
        logits_to_keep=1,
    )
    logits: torch.Tensor = output.logits[:, -1]
    return logits


class Endings:
    """Tells endings of answers token by token; decodes no more than it must."""

    def __init__(self, tokenizer: Any, end_ids: Collection[int]) -> None:
        self._tokenizer = tokenizer
        self._end_ids = end_ids
        self._completes: dict[tuple[int, str], bool] = {}

    def of(self, ids: Sequence[int], max_tokens: int, stop: tuple[str, ...]) -> Ending | None:
        """How the answer ended with its last id, or None. Asked after every id."""
        if ids[-1] in self._end_ids:
            return "end"
        if any(self._stops(ids, string) for string in stop):
            return "stop"
        return "length" if len(ids) >= max_tokens else None

    def text(self, ids: Sequence[int], stop: tuple[str, ...]) -> str:
        """The answer without special tokens and its end, cut before the first stop string."""
        ended = bool(ids) and ids[-1] in self._end_ids  # which the tokenizer may not call special
        text = self._decode(ids[:-1] if ended else ids)
        found = [place for string in stop if (place := text.find(string)) >= 0]
        return text[: min(found)] if found else text

    def _stops(self, ids: Sequence[int], stop: str) -> bool:
        """Whether the last id completed the stop string."""
        if not self._may_complete(ids[-1], stop):
            return False
        # Each token holds a byte or more; the one before them keeps a decoder that strips the
        # first space from stripping one of the string.
        tail = ids[-(len(stop.encode()) + 1) :]
        return stop in self._decode(tail) and stop in self._decode(ids)

    def _may_complete(self, token: int, stop: str) -> bool:
        """Whether a stop string can end within this token; true in doubt."""
        known = self._completes.get((token, stop))
        if known is None:
            own = self._decode([token])
            known = stop[-1] in own or UNFINISHED in own or not own or stop[-1].isspace()
            self._completes[token, stop] = known
        return known

    def _decode(self, ids: Sequence[int]) -> str:
        text: str = self._tokenizer.decode(
            list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False
        )
        return text


def additive(allowed: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """0 where attention is allowed, the dtype's least number elsewhere: what is added to scores.

    Unlike a boolean mask it serves both of transformers' implementations, sdpa and eager.
    """
    mask = torch.zeros(allowed.shape, dtype=dtype, device=allowed.device)
    return mask.masked_fill_(~allowed, torch.finfo(dtype).min)


def aligned(mask: torch.Tensor) -> torch.Tensor:
    """The same mask with rows that begin at multiples of 8 numbers, as kernels on a GPU want them:
    else each layer makes itself such a copy."""
    width = mask.shape[-1]
    return pad(mask, (0, -width % 8))[..., :width]


def check_attention(model: Any, length: int) -> None:
    """Refuses a model whose layers would not attend as our masks say in a row of `length` tokens.

    Raises ConfigError: layers without attention, or a sliding window shorter than the row.
    """
    config = model.config
    others = sorted(set(getattr(config, "layer_types", None) or ()) - {FULL, SLIDING})
    if others:
        raise ConfigError(
            f"local: {config.model_type} has layers of type {', '.join(others)}, and only full "
            "attention is supported: choose another model"
        )
    for what, most in _limits(config).items():
        if length > most:
            raise ConfigError(
                f"local: {config.model_type} {what} {most} tokens, and a row of {length} was asked "
                "for: shorten prompts or max_tokens, or choose another model"
            )


def longest_row(config: Any) -> int:
    """Tokens that a row can have, so that it is computed as our masks and positions say, whatever
    rows are beside it."""
    return min([int(config.max_position_embeddings), *_limits(config).values()])


def _limits(config: Any) -> dict[str, int]:
    """What bounds a row besides the context. A window of 0 is none."""
    ropes = getattr(config, "rope_parameters", None) or {}
    kinds = [ropes, *(one for one in ropes.values() if isinstance(one, dict))]
    turned = [one for one in kinds if one.get("rope_type") == "longrope"]
    before = [int(one.get("original_max_position_embeddings") or 0) for one in turned]
    window = int(getattr(config, "sliding_window", None) or 0)
    found = {
        "attends within a window of": window,
        "computes positions (longrope) by the longest row of a batch beyond": max([0, *before]),
    }
    return {what: most for what, most in found.items() if most}
