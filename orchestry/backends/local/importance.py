"""Truncated importance weights: the actions were drawn by another policy than the one that learns.

A server rounds otherwise than the learner, and draws from the likeliest tokens only. The gradient
of an action is multiplied by min(learner's probability / drawing probability, C): truncated
importance sampling (Ionides 2008; for rollout and training engines that differ, Yao et al. 2025,
"Your efficient RL framework secretly brings you off-policy RL training"). Truncation bounds the
variance; what it cuts off is a bias.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from orchestry.backends.local.batch import Sample
from orchestry.backends.local.diagnostics import Tally

_MOST = 20.0
"""Most nats of a ratio that is computed or shown."""


@dataclass(frozen=True, slots=True)
class Weighing:
    """How actions are weighed."""

    most: float | None
    """C: the largest weight; None: actions are not weighed."""
    whole: bool = False
    """One weight for a whole answer, the product of its tokens' ratios; else one per token."""

    def ratios(self, learned: Sequence[Tensor], drawn: Iterator[Sample]) -> list[Tensor]:
        """Learner's probability over drawing probability, per action: (T,) or, of whole answers,
        (1,); without gradient. None if actions are not weighed.

        `learned`: the learner's log-probabilities, (T,) per action; `drawn` has the actions next.
        """
        found = list[Tensor]()
        for new_T in learned if self.most is not None else ():
            sample = next(drawn)
            known = sample.served or sample.logprobs
            gap_T = new_T.detach() - torch.tensor(known, dtype=new_T.dtype, device=new_T.device)
            gap = gap_T.sum(0, keepdim=True) if self.whole else gap_T
            found.append(gap.clamp(max=_MOST).exp())
        return found

    def weights(self, ratios: Sequence[Tensor]) -> list[Tensor] | None:
        """The ratios, cut at C."""
        return None if self.most is None else [each.clamp(max=self.most) for each in ratios]

    def note(self, tally: Tally, agent: str, ratios: Sequence[Tensor]) -> None:
        """Adds to an update's figures the mean `ratio` and the share that was cut at C,
        `ratio_clipped`."""
        if self.most is None or not ratios:
            return
        all_of = torch.cat(list(ratios)).double()
        cut = (all_of > self.most).sum().item()
        tally.add("ratio", agent, all_of.sum().item(), len(all_of))
        tally.add("ratio_clipped", agent, cut, len(all_of))
