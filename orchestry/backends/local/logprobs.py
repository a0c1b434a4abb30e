"""Log-probabilities of answers, with gradients, for the policy gradient.

A row holds one prompt followed by all its answers; each answer attends only to the prompt and
itself. So training too computes the prompt once for G answers. What several rows begin with can be
computed before them (Beginning). Logits are computed only for hidden states that predict an
answer's token, in chunks that are never kept.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import torch
from torch.nn.modules.dropout import _DropoutNd

from orchestry.backends.local.batch import Packed
from orchestry.backends.local.decode import additive, aligned, check_attention
from orchestry.backends.local.sizes import CHUNK
from orchestry.core.errors import ConfigError

if TYPE_CHECKING:
    from orchestry.backends.local.adapters import Adapters
    from orchestry.backends.local.beginnings import Beginning
    from orchestry.backends.local.model import Base

_SOFTCAPS = ("final_logit_softcapping",)
"""Config keys of models that bend the logits after the last linear layer."""
_COPIED = 0.25
"""Memory that a pass keeps for a token's keys and values alone, as a share of what it keeps for a
token that it computes, about: by `fits` 0.16 for the embedded model, and less where the
feed-forward part is wider."""
_Function: Any = torch.autograd.Function  # its methods have no types


def never_drops(model: Any) -> None:
    """Switches off the base's own dropout, and the noise in the choice of its experts: they would
    make the learning policy differ from the drawing one, with masks from an unknown seed."""
    for module in model.modules():
        if isinstance(module, _DropoutNd):
            module.p = 0.0
        if any("jitter" in name for name in vars(module)):
            module.train = _stays  # its rate is used in evaluation too: 0 would be another model
        for place in (module, getattr(module, "config", module)):
            rates = {name: rate for name, rate in vars(place).items() if "drop" in name}
            for name in (name for name, rate in rates.items() if isinstance(rate, float)):
                setattr(place, name, 0.0)


def _stays(mode: bool = True) -> None:
    """In place of a module's `train`: it stays in evaluation mode."""


def completion_logprobs(
    base: Base,
    adapters: Adapters,
    groups: Sequence[Packed],
    temperature: float,
    beginning: Beginning | None = None,
) -> list[torch.Tensor]:
    """One tensor (T,) per answer, group by group: nats of its T tokens, including its end token.

    They are of softmax(logits / temperature): the drawing policy, if the sampler had the same
    temperature and no top-p. All groups go through the model as one batch, padded to the longest:
    `micro_batches` bounds it. Gradients reach the adapters only; those of a `beginning`, with which
    all prompts begin, when `Beginning.learned` ends.

    Raises ConfigError for a temperature of 0 (no gradient), and for models without full attention
    or with changes to the logits after the last layer; ValueError for an empty prompt or answer.
    """
    if temperature <= 0:
        raise ConfigError(
            f"local: a temperature of {temperature} was found, at which a policy has no gradient: "
            "set a temperature above 0, such as 0.8"
        )
    if any(not group.prompt_ids or not all(group.completions) for group in groups):
        raise ValueError("every prompt and every answer needs at least one token")
    if not any(group.completions for group in groups):
        return []
    model: Any = base.model
    check_attention(model, max(group.tokens for group in groups))
    head = _head(model)
    before = len(beginning.ids) if beginning else 0
    rows = _Rows.of(
        [replace(group, prompt_ids=group.prompt_ids[before:]) for group in groups], model.device
    )
    with adapters.rows([group.agent_index for group in groups]), without_gates():
        hidden_BLH = model.get_decoder()(
            input_ids=rows.ids_BL,
            attention_mask=rows.mask(model.dtype, before),
            position_ids=rows.positions_BL + before,
            cache=beginning.cache(len(groups)) if beginning and before else None,
            use_cache=before > 0,
        ).last_hidden_state
    hidden_PH = hidden_BLH.flatten(0, 1)[rows.sources_P]
    scaled = temperature * _divisor(model.config)
    logprobs_P = token_logprobs(hidden_PH, head.weight, head.bias, rows.targets_P, scaled)
    lengths = [len(ids) for group in groups for ids in group.completions]
    return list(torch.split(logprobs_P, lengths))


def without_gates() -> AbstractContextManager[None]:
    """What is computed in this context keeps no silu(x) for the gradient, but computes it again
    from x, which is kept anyway by a gated feed-forward layer (Llama, Qwen, Mistral)."""

    def pack(tensor: torch.Tensor) -> Any:
        node: Any = tensor.grad_fn
        if node is not None and node.name() == "SiluBackward0":
            return node
        return tensor.detach()  # a node that kept itself alive would outlive a failed pass

    def unpack(kept: Any) -> torch.Tensor:
        if isinstance(kept, torch.Tensor):
            return kept
        return torch.nn.functional.silu(kept._saved_self)

    return torch.autograd.graph.saved_tensors_hooks(pack, unpack)


def micro_batches(
    groups: Sequence[Packed], max_tokens: int, joined: int | None = None, before: int = 0
) -> Iterator[list[Packed]]:
    """The groups in batches of at most `max_tokens`, padding included: rows x longest row; of
    several groups only up to `joined` tokens, if that is less.

    A group that is too long is split, and its prompt is computed again for the other answers. A
    prompt and answer longer than `max_tokens` get their own batch. Answers keep their order. Of
    each prompt, `before` tokens are in a Beginning: they count once, and for the copies of their
    keys and values about _COPIED of them count in each row.
    """
    batch: list[Packed] = []
    longest = 0
    together = min(max_tokens, joined or max_tokens) - before
    copied = int(_COPIED * before)
    for group in groups:
        for part in _parts(group, max_tokens - copied):
            tokens = part.tokens - before + copied
            longest = max(longest, tokens)
            if batch and longest * (len(batch) + 1) > together:
                yield batch
                batch, longest = [], tokens
            batch.append(part)
    if batch:
        yield batch


def _parts(group: Packed, max_tokens: int) -> Iterator[Packed]:
    """Splits the group into parts with as many answers as fit."""
    part: tuple[tuple[int, ...], ...] = ()
    for ids in group.completions:
        if part and replace(group, completions=(*part, ids)).tokens > max_tokens:
            yield replace(group, completions=part)
            part = ()
        part = (*part, ids)
    if part:
        yield replace(group, completions=part)


@dataclass(frozen=True, slots=True)
class _Rows:
    """The groups as tensors: B rows, right-padded to L; P predicted tokens in total."""

    ids_BL: torch.Tensor
    positions_BL: torch.Tensor
    parts_BL: torch.Tensor
    """0: the prompt; 1 to G: that answer; -1: padding."""
    sources_P: torch.Tensor
    """Index in (B x L) of the state that predicts each token."""
    targets_P: torch.Tensor

    @classmethod
    def of(cls, groups: Sequence[Packed], device: torch.device) -> _Rows:
        width = max(group.tokens for group in groups)
        ids, positions, parts = [], [], []
        sources: list[int] = []
        for row, group in enumerate(groups):
            prompt, answers = len(group.prompt_ids), group.completions
            pad = width - group.tokens
            ids.append([*group.prompt_ids, *(i for answer in answers for i in answer[:-1])])
            ids[-1] += [group.prompt_ids[0]] * pad
            positions.append([*range(prompt)])
            parts.append([0] * prompt)
            starts = accumulate((len(answer) - 1 for answer in answers), initial=prompt)
            for number, (start, answer) in enumerate(zip(starts, answers, strict=False), 1):
                read = len(answer) - 1
                positions[-1] += range(prompt, prompt + read)
                parts[-1] += [number] * read
                # The prompt's last token predicts the first of every answer.
                sources += [row * width + prompt - 1]
                sources += range(row * width + start, row * width + start + read)
            positions[-1] += [0] * pad
            parts[-1] += [-1] * pad
        targets = [i for group in groups for answer in group.completions for i in answer]
        tensors = (torch.tensor(x, device=device) for x in (ids, positions, parts))
        return cls(*tensors, *(torch.tensor(x, device=device) for x in (sources, targets)))

    def mask(self, dtype: torch.dtype, before: int = 0) -> torch.Tensor:
        """(B, 1, L, before + L), additive: each token sees the beginning, the prompt and its own
        answer, up to itself.

        Padding sees padding, so that no row of scores is empty; nothing else sees padding.
        """
        width = self.ids_BL.shape[1]
        queries, keys = self.parts_BL[:, :, None], self.parts_BL[:, None, :]
        causal = torch.ones(width, width, dtype=torch.bool, device=self.ids_BL.device).tril()
        seen = causal & ((keys == 0) & (queries >= 0) | (keys == queries))
        seen = torch.nn.functional.pad(seen, (before, 0), value=True)
        return aligned(additive(seen, dtype))[:, None]


def token_logprobs(
    hidden_PH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    ids_P: torch.Tensor,
    temperature: float,
    chunk: int = CHUNK,
) -> torch.Tensor:
    """log softmax((hidden @ weight.T + bias) / temperature) at `ids`, shape (P,), in nats.

    Holds at most `chunk` logits at a time, in forward and backward. Gradients reach the hidden
    states, and weight and bias if they learn. At least float32 after the product.
    """
    result: torch.Tensor = _TokenLogprobs.apply(
        hidden_PH, weight_VH, bias_V, ids_P, temperature, max(1, chunk // weight_VH.shape[0])
    )
    return result


class _TokenLogprobs(_Function):  # type: ignore[misc]
    """A token's log-probability depends on its own hidden state alone. So forward also computes its
    derivative, (P, H), from the logits at hand, and backward only multiplies. Logits are computed
    again just for an output layer that learns."""

    @staticmethod
    def forward(
        ctx: Any,
        hidden_PH: torch.Tensor,
        weight_VH: torch.Tensor,
        bias_V: torch.Tensor | None,
        ids_P: torch.Tensor,
        temperature: float,
        rows: int,
    ) -> torch.Tensor:
        chosen, totals, slopes = [], [], []
        for hidden, ids in zip(torch.split(hidden_PH, rows), torch.split(ids_P, rows), strict=True):
            logits = _logits(hidden, weight_VH, bias_V, temperature)
            totals.append(logits.logsumexp(-1))
            chosen.append(logits.gather(-1, ids[:, None]).squeeze(-1))
            if ctx.needs_input_grad[0]:
                slope = _slope(logits, totals[-1], ids, temperature)
                slopes.append(slope.to(hidden.dtype) @ weight_VH)
        total_P = torch.cat(totals)
        layer: tuple[torch.Tensor | None, ...] = ()
        if any(ctx.needs_input_grad[1:3]):
            layer = (hidden_PH, weight_VH, bias_V, ids_P, total_P)
        ctx.save_for_backward(torch.cat(slopes) if slopes else None, *layer)
        ctx.temperature, ctx.rows = temperature, rows
        return torch.cat(chosen) - total_P

    @staticmethod
    def backward(ctx: Any, grad_P: torch.Tensor) -> tuple[torch.Tensor | None, ...]:
        slope_PH, *layer = ctx.saved_tensors
        own = None if slope_PH is None else (slope_PH * grad_P[:, None]).to(slope_PH.dtype)
        grads = _layer_grads(grad_P, ctx.temperature, ctx.rows, *layer) if layer else (None, None)
        return own, *grads, None, None, None


def _slope(
    logits: torch.Tensor, total: torch.Tensor, ids: torch.Tensor, temperature: float
) -> torch.Tensor:
    """d logprob / d logits = (one-hot - softmax) / temperature, in the place of the logits."""
    slope = logits.sub_(total[:, None]).exp_().neg_()
    slope.scatter_add_(-1, ids[:, None], torch.ones_like(total)[:, None])
    return slope.div_(temperature)


def _layer_grads(
    grad_P: torch.Tensor,
    temperature: float,
    rows: int,
    hidden_PH: torch.Tensor,
    weight_VH: torch.Tensor,
    bias_V: torch.Tensor | None,
    ids_P: torch.Tensor,
    total_P: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor | None]:
    """The gradient of the output layer's weight and bias."""
    weight_grad = torch.zeros_like(weight_VH)
    bias_grad = None if bias_V is None else torch.zeros_like(bias_V)
    pieces = (torch.split(x, rows) for x in (hidden_PH, ids_P, total_P, grad_P))
    for hidden, ids, total, grad in zip(*pieces, strict=True):
        logits = _logits(hidden, weight_VH, bias_V, temperature)
        slope = _slope(logits, total, ids, temperature).mul_(grad[:, None]).to(hidden.dtype)
        weight_grad.addmm_(slope.T, hidden)
        if bias_grad is not None:
            bias_grad += slope.sum(0)
    return weight_grad, bias_grad


def _logits(
    hidden: torch.Tensor, weight: torch.Tensor, bias: torch.Tensor | None, temperature: float
) -> torch.Tensor:
    """Scaled logits in a tensor of their own."""
    logits = torch.nn.functional.linear(hidden, weight, bias)
    exact = torch.promote_types(logits.dtype, torch.float32)
    return logits.to(exact).div_(temperature)


def _head(model: Any) -> Any:
    """The model's last layer, tied to its embeddings or not; only a factor may follow it."""
    after = [name for name in _SOFTCAPS if getattr(model.config, name, None) is not None]
    head = model.get_output_embeddings()
    if after or not isinstance(head, torch.nn.Linear):
        found = ", ".join(after) or f"an output layer of type {type(head).__name__}"
        raise ConfigError(
            f"local: {model.config.model_type} has {found}, and log-probabilities are computed "
            "from a plain last linear layer: choose another model, or play without learning "
            "(learn.enabled=false)"
        )
    return head


def _divisor(config: Any) -> float:
    """What the model divides its logits by: Granite's divisor, Cohere's factor. The self-check at
    load finds a family that means another thing by these names."""
    given = (getattr(config, name, None) for name in ("logits_scaling", "logit_scale"))
    by, times = (one if isinstance(one, (int, float)) and one else 1.0 for one in given)
    return float(by / times)
