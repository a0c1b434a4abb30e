"""LearnConfig: how backend local learns."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BeforeValidator, Field, field_validator, model_validator

from orchestry.core.resolve import Mark, listed, unless_auto
from orchestry.core.types import Frozen

_REPLAYED: dict[str, tuple[object, ...]] = {
    "rewards": ("final", "differences"),
    "discount": (1.0,),
    "grouping": ("turn",),
    "baseline": ("mean",),
    "normalise": (False,),
}
"""The settings that `credit: replay` accepts."""


_ADAPTIVE = {
    "credit": "joint",
    "grouping": "turn",
    "normalise": False,
    "kl": 0.0,
    "comlrl_compat": False,
}
"""The settings that `group_size: auto` requires."""


_LORA_ALONE = (*("rank", "alpha", "rslora", "targets", "dropout", "kl", "quantize", "vllm_url"),)
"""The settings that `method: full` leaves at their defaults."""


_Url = Annotated[str, Field(pattern=r"^https?://[^/@,\s]+(/v1)?/?$")]


class LearnConfig(Frozen):
    """Backend local: MAGRPO gradients (arXiv 2508.04652) on one LoRA adapter per agent."""

    enabled: bool = True
    """False: play without learning."""
    source: Annotated[Path | None, Mark.MOVABLE] = Field(None, alias="from")
    """Adapters to start from (`learn.from`): a checkpoint's folder. None: fresh ones."""
    roles: Annotated[Mapping[str, str | None] | None, Mark.MEASURED] = None
    """By agent: the agent of `learn.from` whose adapter it starts with, for a team with other
    roles; null: a fresh one. Agents that are not named start with the adapter of their own name,
    fresh where there is none. None: every agent must find one of its own name."""
    group_size: Annotated[int | None, BeforeValidator(unless_auto)] = Field(4, ge=1, le=64)
    """Trajectories per problem (G in the paper). The mean of their returns is the baseline. None or
    `auto`: `group_mean` on average, more where the problem's rewards differed before."""
    group_mean: int = Field(4, ge=3, le=64)
    """Trajectories per problem on average, with `group_size: auto`."""
    every: int = Field(8, ge=1, le=100_000)
    """Episodes (problems) per update."""
    epochs: int = Field(1, ge=1, le=16)
    """Steps per update, from the same actions; more than one needs `learn.clip`."""
    clip: float | None = Field(None, gt=0.0, lt=1.0)
    """From the second step on, a token's ratio to the update's first policy is clipped to
    [1 - clip, 1 + clip] (PPO, arXiv 1707.06347)."""
    importance: float | None = Field(None, ge=1.0, le=100.0)
    """Weighs actions by the learner's probability over that of the policy that drew them (a vLLM
    server), at most this number: truncated importance sampling; 2 is usual. None: no weights."""
    importance_of: Literal["token", "answer"] = "token"
    """One weight per token, or one per answer (the product)."""
    kl: float = Field(0.0, ge=0.0, le=10.0)
    """Weight of the KL to the base without adapter. 0: it is not computed (as in the paper)."""
    learning_rate: Annotated[float, Mark.RESUMABLE] = Field(1e-4, ge=0.0, le=1.0)
    """AdamW's learning rate, after a warm-up of 10 % of the updates (at most 100). 0 is the
    control, which learns nothing."""
    decay: Annotated[Literal["none", "linear", "cosine"], Mark.RESUMABLE] = "none"
    """How the learning rate falls from the warm-up to the run's last update, where it is almost 0.
    A resume with more episodes goes on at the rate that the longer run has there."""
    max_grad_norm: float = Field(1.0, gt=0.0)
    """Gradients are clipped to this norm."""
    rewards: Literal["differences", "final", "turns"] = "differences"
    """What an action earns. `differences`: how much each stage from its own on changed the score,
    which sums to the final score less the score before the action; `final`: the final score.
    With discount 1 both train the reported reward. `turns`: the sum of the scores after each stage,
    as in the paper, which also pays for scores in between."""
    discount: float = Field(1.0, ge=0.0, le=1.0)
    """Discount of the reward per stage (gamma)."""
    grouping: Literal["turn", "history", "agent"] = "turn"
    """An agent's actions that form a group: those of one stage; of one history (AT-GRPO, arXiv
    2510.11062); of all stages (Dr. MAS, arXiv 2602.08847)."""
    credit: Literal["joint", "replay"] = "joint"
    """`joint`: an action's return is that of its joint action (the paper). `replay`: counterfactual
    advantage, compared with replays in which only this agent acts differently (as in COMA, arXiv
    1705.08926)."""
    baseline: Literal["mean", "leave_one_out", "critic"] = "mean"
    """`mean`: the group's mean return (the paper); `leave_one_out`: that of the others (RLOO);
    `critic`: what a learned critic expects, which sees all agents' histories during training
    (MAPPO, arXiv 2103.01955). It has an adapter of its own on the first agent's base."""
    gae_lambda: float = Field(0.95, ge=0.0, le=1.0)
    """With `baseline: critic` and several stages, how far an advantage looks beyond the critic's
    next estimate (GAE, arXiv 1506.02438). 1: to the end; 0: not at all."""
    critic_rate: Annotated[float, Mark.RESUMABLE] = Field(5e-4, ge=0.0, le=1.0)
    """The critic's learning rate (AdamW, no warm-up)."""
    normalise: bool = False
    """Divide advantages by the group's standard deviation, as GRPO does and MAGRPO does not."""
    reduce: Literal["sum", "mean"] = "sum"
    """Log-probability of an answer: the sum over its tokens (the paper), or their mean."""
    comlrl_compat: bool = False
    """The loss of CoMLRL 1.4.3, for comparing with it: advantages are divided by their standard
    deviation, temperature is 1, padding is trained, the last token is not."""
    top_p: Annotated[float, Mark.MEASURED] = Field(0.95, gt=0.0, le=1.0)
    """Each token is drawn from the likeliest tokens that together have this probability."""
    top_k: Annotated[int | None, Mark.MEASURED] = Field(None, ge=1)
    """Each token is drawn from this many likeliest tokens, before `top_p` cuts these. None: from
    all. As with `top_p`, the log-probabilities that are learned from are those without the cut."""
    method: Literal["lora", "full"] = "lora"
    """`lora`: an adapter per agent on one frozen base. `full`: each agent trains all weights of a
    copy of the base of its own, in float32. That takes 16 bytes per weight; usual are learning
    rates of 1e-5 or less."""
    rank: int = Field(16, ge=1, le=1024)
    """Rank of an adapter's two matrices (r)."""
    alpha: int = Field(32, ge=1)
    """An adapter's output is multiplied by alpha / rank."""
    rslora: bool = False
    """Multiply by alpha / sqrt(rank) instead (rsLoRA, arXiv 2312.03732), so that a higher rank does
    not learn more slowly."""
    targets: Literal["all-linear"] | tuple[str, ...] | None = Field(None, min_length=1)
    """The linear layers that get adapters: a list of their names, such as [qkv_proj, o_proj], or
    `all-linear`. None: the attention's q_proj, k_proj, v_proj and o_proj."""
    dropout: float = Field(0.0, ge=0.0, lt=1.0)
    """Dropout on an adapter's input during learning. With it, the learning policy differs slightly
    from the one that drew the answers, so it is off by default; the paper's runs use 0.05."""
    shared: bool = False
    """One adapter for all agents."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Mark.RESUMABLE, Mark.OPERATIONAL] = "auto"
    """`auto`: a GPU if there is one."""
    dtype: Annotated[Literal["auto", "float32", "bfloat16"], Mark.MEASURED] = "auto"
    """Number format of the base model. `auto`: bfloat16 on a GPU that computes in it, else
    float32."""
    quantize: Annotated[Literal["nf4", "int8"] | None, Mark.MEASURED] = None
    """Quantization of the base model by bitsandbytes (extra `quantize`)."""
    vllm_url: Annotated[
        tuple[_Url, ...] | None, BeforeValidator(listed), Mark.RESUMABLE, Mark.ADDRESS
    ] = Field(None, min_length=1)
    """A running vLLM server that draws the answers, such as http://127.0.0.1:8000, or a list of
    several that share the work; learning stays here. None: this process draws them."""
    threads: Annotated[int | None, Mark.OPERATIONAL] = Field(None, ge=1)
    """CPU threads for the arithmetic, for all processes of a launch together. None: all cores that
    the process may use. A resume keeps the number, since results depend on it in the last bits."""
    micro_tokens: Annotated[int | None, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(None, ge=64)
    """Most tokens in one forward and backward pass; a smaller number needs less memory. None: 4096
    on a GPU, 1024 on a CPU, where several prompts share a pass only up to 512."""
    evaluate_every: Annotated[int | None, Mark.RESUMABLE] = Field(None, ge=1)
    """Updates between two evaluations on dev; there is one before the first update too. None: no
    evaluations. The checkpoint with the highest dev reward is kept."""
    evaluate_problems: int = Field(16, ge=1)
    """Dev problems per evaluation, `group_size` trajectories each."""
    gradient_checkpointing: Annotated[bool, Mark.RESUMABLE, Mark.OPERATIONAL] = False
    """Compute each layer again in the backward pass: less memory, more time."""
    keep: Annotated[int, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(3, ge=1, le=1000)
    """Checkpoints kept, one per update; the last two at least."""
    keep_every: Annotated[int | None, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(None, ge=1)
    """Every so many updates a checkpoint is kept for good, besides the last `keep` and the best on
    dev, so that `orchestry evaluate RUN --update N` can play it. None: none."""

    @field_validator("targets", mode="before")
    @classmethod
    def _names_in_one_text(cls, given: Any) -> Any:
        """`--set learn.targets=qkv_proj,o_proj`."""
        return given if given == "all-linear" else listed(given)

    @field_validator("vllm_url")
    @classmethod
    def _each_server_once(cls, urls: tuple[str, ...] | None) -> tuple[str, ...] | None:
        if urls and len({url.rstrip("/").removesuffix("/v1") for url in urls}) < len(urls):
            raise ValueError("name each server once")
        return urls

    @model_validator(mode="after")
    def _replays_are_compared_at_the_end(self) -> Self:
        for name, fits in _REPLAYED.items():
            if self.credit == "replay" and (found := getattr(self, name)) not in fits:
                raise ValueError(
                    f"learn.credit=replay compares final scores one by one, but learn.{name}="
                    f"{found}: set it to {fits[0]}"
                )
        return self

    @model_validator(mode="after")
    def _sizes_keep_the_gradient(self) -> Self:
        for name, fits in _ADAPTIVE.items():
            if self.group_size is None and (found := getattr(self, name)) != fits:
                raise ValueError(
                    "learn.group_size=auto keeps the gradient's mean that of equal groups, which "
                    f"learn.{name}={found} would not: set it to {fits}, or give group_size a number"
                )
        if self.enabled and self.group_size is not None and self.group_mean != 4:
            raise ValueError(
                f"learn.group_mean={self.group_mean} is for learn.group_size=auto: set that, or "
                f"learn.group_size={self.group_mean}"
            )
        return self

    @model_validator(mode="after")
    def _samples_are_compared(self) -> Self:
        compared = self.credit == "joint" and self.baseline != "critic"
        alone = self.group_size == 1 and compared and self.grouping != "agent"
        if self.enabled and alone:
            raise ValueError(
                "with learn.group_size=1 every advantage is 0, so nothing would be learned: set "
                "it to at least 2, or set learn.credit=replay or learn.baseline=critic"
            )
        return self

    @property
    def learns_values(self) -> bool:
        """Whether a critic learns."""
        return self.enabled and self.baseline == "critic"

    @model_validator(mode="after")
    def _critic_stands_alone(self) -> Self:
        usual = LearnConfig.model_fields
        if self.baseline == "critic":
            for name in ("grouping", "normalise"):
                if (found := getattr(self, name)) != usual[name].default:
                    raise ValueError(
                        "learn.baseline=critic compares an action with the critic's estimate and "
                        f"not with its group, but learn.{name}={found}: leave it out"
                    )
        else:
            for name in ("gae_lambda", "critic_rate"):
                if (found := getattr(self, name)) != usual[name].default:
                    raise ValueError(
                        f"learn.{name}={found} is of the critic: set learn.baseline=critic, or "
                        "leave it out"
                    )
        return self

    @model_validator(mode="after")
    def _whole_weights_stand_alone(self) -> Self:
        usual = LearnConfig.model_fields
        for name in _LORA_ALONE if self.method == "full" else ():
            if (found := getattr(self, name)) != (fits := usual[name].default):
                raise ValueError(
                    "learn.method=full trains all weights of a base in float32, so "
                    f"learn.{name}={found} has no place: leave it at {fits}, or set "
                    "learn.method=lora"
                )
        if self.method == "full" and (self.dtype == "bfloat16" or self.learns_values):
            own = "learn.baseline=critic" if self.learns_values else "learn.dtype=bfloat16"
            raise ValueError(f"learn.method=full refuses {own}: leave it out, or learn.method=lora")
        return self

    @model_validator(mode="after")
    def _reuse_is_clipped(self) -> Self:
        if self.epochs == 1 and self.clip is not None:
            raise ValueError(
                f"learn.clip={self.clip} limits only the second and later steps, and "
                "learn.epochs=1 takes one step: set learn.epochs=2, or leave out learn.clip"
            )
        if self.epochs > 1 and self.clip is None:
            raise ValueError(
                f"learn.epochs={self.epochs} learns from actions of an older policy: set "
                "learn.clip, 0.2 for instance, or learn.epochs=1"
            )
        return self

    @model_validator(mode="after")
    def _weights_are_asked_for(self) -> Self:
        if self.importance is None and self.importance_of != "token":
            raise ValueError(
                f"learn.importance_of={self.importance_of} weighs nothing without "
                "learn.importance: set that, 2 for instance, or leave it out"
            )
        return self

    @model_validator(mode="after")
    def _has_roles_to_take_over(self) -> Self:
        if self.roles and self.shared:
            raise ValueError(
                "learn.shared=true has one adapter for all agents: leave out learn.roles"
            )
        return self

    @model_validator(mode="after")
    def _one_loss(self) -> Self:
        own: dict[str, object] = {"reduce": "sum", "baseline": "mean", "epochs": 1, "kl": 0.0}
        own |= {"grouping": "turn", "credit": "joint", "importance": None}
        if self.comlrl_compat and any(getattr(self, name) != own[name] for name in own):
            raise ValueError(f"learn.comlrl_compat replaces the loss: leave out {', '.join(own)}")
        if self.comlrl_compat and self.rewards == "differences":
            raise ValueError(
                "learn.comlrl_compat sums scores as CoMLRL does: set learn.rewards=turns"
            )
        return self

    @property
    def samples(self) -> int:
        """Trajectories per problem, on average."""
        return self.group_size or self.group_mean
