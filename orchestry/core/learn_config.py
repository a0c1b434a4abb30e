"""What decides how backend local learns: the section `learn` of a run's config."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import Field, model_validator

from orchestry.core.resolve import Mark
from orchestry.core.types import Frozen

_REPLAYED = {
    "rewards": "final",
    "discount": 1.0,
    "grouping": "turn",
    "baseline": "mean",
    "normalise": False,
}
"""What goes with `credit: replay`."""


class LearnConfig(Frozen):
    """Backend local: MAGRPO gradients (arXiv 2508.04652) on one LoRA adapter per agent."""

    enabled: bool = True
    """False plays with the adapters as they are."""
    source: Annotated[Path | None, Mark.MOVABLE] = Field(None, alias="from")
    """Adapters to start from (`learn.from`): a checkpoint's folder. None: fresh ones."""
    group_size: int = Field(4, ge=1, le=64)
    """Trajectories drawn of each problem: their returns' mean is the baseline (G in the paper)."""
    every: int = Field(8, ge=1, le=100_000)
    """Episodes (problems) per update."""
    epochs: int = Field(1, ge=1, le=16)
    """Steps per update, from the same actions; more than one needs `learn.clip`."""
    clip: float | None = Field(None, gt=0.0, lt=1.0)
    """From the second step on a token's ratio to the policy that began the update counts up to
    1 - clip and 1 + clip only (PPO, arXiv 1707.06347)."""
    kl: float = Field(0.0, ge=0.0, le=10.0)
    """Weight of the KL to the reference, the base without adapter; 0 computes none (the paper)."""
    learning_rate: Annotated[float, Mark.RESUMABLE] = Field(1e-4, ge=0.0, le=1.0)
    """Of AdamW, after a warm-up of 10 % of the updates, 100 at most. 0 is the control that learns
    nothing."""
    max_grad_norm: float = Field(1.0, gt=0.0)
    """Gradients are clipped to this norm."""
    rewards: Literal["turns", "final"] = "turns"
    """`turns`: a return sums the scores after each stage, as the paper has it; `final`: only the
    last score counts."""
    discount: float = Field(1.0, ge=0.0, le=1.0)
    """Of a reward one stage later."""
    grouping: Literal["turn", "history", "agent"] = "turn"
    """What is compared: an agent's actions of one stage; of one history (AT-GRPO, arXiv
    2510.11062); of all stages (Dr. MAS, arXiv 2602.08847)."""
    credit: Literal["joint", "replay"] = "joint"
    """`joint`: an action is worth what its joint action returned (the paper); `replay`: what that
    returned beside plays in which this agent alone acted otherwise (as COMA, arXiv 1705.08926)."""
    baseline: Literal["mean", "leave_one_out"] = "mean"
    """The mean of the group (the paper), or that of the others (RLOO)."""
    normalise: bool = False
    """Divide advantages by the group's standard deviation, as GRPO does and MAGRPO does not."""
    reduce: Literal["sum", "mean"] = "sum"
    """Log-probability of an answer: the sum over its tokens (the paper), or their mean."""
    comlrl_compat: bool = False
    """The loss of CoMLRL 1.4.3, to compare with it: advantages over their standard deviation,
    temperature 1, padding trained, the last token not."""
    top_p: Annotated[float, Mark.MEASURED] = Field(0.95, gt=0.0, le=1.0)
    """Answers are drawn from the likeliest tokens that hold this much probability."""
    rank: int = Field(16, ge=1, le=1024)
    """Of an adapter's two matrices (r)."""
    alpha: int = Field(32, ge=1)
    """An adapter's output is multiplied by alpha / rank."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """On an adapter's input while it learns. The policy that learns is then not quite the one that
    drew the answers, so it is off; the paper's runs have 0.05."""
    shared: bool = False
    """One adapter for all agents."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Mark.RESUMABLE, Mark.OPERATIONAL] = "auto"
    """`auto`: a GPU where there is one."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Mark.MEASURED] = "auto"
    """Of the base model. `auto`: float32 on a CPU, bfloat16 on a GPU."""
    quantize: Annotated[Literal["nf4", "int8"] | None, Mark.MEASURED] = None
    """Of the base model, by bitsandbytes (extra `quantize`)."""
    vllm_url: Annotated[str | None, Mark.RESUMABLE, Mark.ADDRESS] = Field(
        None, pattern=r"^https?://[^/@\s]+(/v1)?/?$"
    )
    """A running vLLM server that draws the answers, such as http://127.0.0.1:8000; learning stays
    here. None: this process draws them."""
    threads: Annotated[int | None, Mark.OPERATIONAL] = Field(None, ge=1)
    """Of the arithmetic on a CPU, for all processes of a launch. None: all cores that the
    process may use. A resume keeps their number, since it decides the last bits."""
    micro_tokens: Annotated[int | None, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(None, ge=64)
    """Most tokens in one forward and backward pass: less takes less memory. None: 4096 on a GPU,
    1024 on a CPU."""
    evaluate_every: Annotated[int | None, Mark.RESUMABLE] = Field(None, ge=1)
    """Updates between two evaluations on dev, before the first update too; None makes none. The
    checkpoint that earned most there is kept."""
    evaluate_problems: int = Field(16, ge=1)
    """Dev problems of an evaluation, `group_size` trajectories each."""
    gradient_checkpointing: Annotated[bool, Mark.RESUMABLE, Mark.OPERATIONAL] = False
    """Compute each layer again in the backward pass: less memory, more time."""
    keep: Annotated[int, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(3, ge=1, le=1000)
    """Checkpoints kept, one per update; the last two at least."""

    @model_validator(mode="after")
    def _replays_are_compared_at_the_end(self) -> Self:
        for name, fits in _REPLAYED.items():
            if self.credit == "replay" and (found := getattr(self, name)) != fits:
                raise ValueError(
                    f"learn.credit=replay compares final scores one by one, and learn.{name}="
                    f"{found} was found: set it to {fits}"
                )
        return self

    @model_validator(mode="after")
    def _samples_are_compared(self) -> Self:
        alone = self.group_size == 1 and self.credit == "joint" and self.grouping != "agent"
        if self.enabled and alone:
            raise ValueError(
                "learn.group_size=1 leaves nothing to compare an action with, so nothing would be "
                "learned: set it to 2 at least, or learn.credit=replay"
            )
        return self

    @model_validator(mode="after")
    def _reuse_is_clipped(self) -> Self:
        if self.epochs == 1 and self.clip is not None:
            raise ValueError(
                f"learn.clip={self.clip} bounds the second step from the same actions on, and "
                "learn.epochs=1 takes one: set learn.epochs=2, or leave learn.clip"
            )
        if self.epochs > 1 and self.clip is None:
            raise ValueError(
                f"learn.epochs={self.epochs} learns from actions of an older policy: set "
                "learn.clip, 0.2 for instance, or learn.epochs=1"
            )
        return self

    @model_validator(mode="after")
    def _one_loss(self) -> Self:
        own: dict[str, object] = {"reduce": "sum", "baseline": "mean", "epochs": 1, "kl": 0.0}
        own |= {"grouping": "turn", "credit": "joint"}
        if self.comlrl_compat and any(getattr(self, name) != own[name] for name in own):
            raise ValueError(
                f"learn.comlrl_compat is a loss of its own: leave {', '.join(own)} as they are"
            )
        return self
