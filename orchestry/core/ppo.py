"""PpoConfig: how backend ppo learns."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from fnmatch import fnmatchcase
from fractions import Fraction
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, BeforeValidator, Field, model_validator

from orchestry.core.errors import ConfigError
from orchestry.core.resolve import Mark, leaves
from orchestry.core.types import Frozen

_GAME = ("task", "task_path", "options", "seed", "agents.ROLE.plays")
READS = (*_GAME, "backend", "agents.ROLE.role", "ppo", "trackers", "executor", "ranks")
"""The config keys and sections that backend ppo reads."""
MEASURES = (*_GAME, "ppo.threads", "ppo.device")
"""Those that decide how its policies are evaluated."""
MOST = 1_000_000
"""Games of one measurement: all are played at once."""
_UNITS = {"": 1, "k": 1_000, "m": 1_000_000, "g": 1_000_000_000}
_COUNT = re.compile(
    r"(\d{1,15}|\d{1,3}(?:,\d{3}){1,4}|\d{1,3}(?:_\d{3}){1,4})"
    r"((?:\.\d{1,15})?(?:e\+?\d\d?)?) ?([kmg]?)",
    re.ASCII,
)
"""A number, with separators between groups of three digits; and one unit."""


def unread(keys: Iterable[str], read: Sequence[str] = READS) -> list[str]:
    """The dotted keys and sections among these that backend ppo does not read."""
    known = [f"{name.replace('ROLE', '*')}.*" for name in read]
    return [key for key in keys if not any(fnmatchcase(f"{key}.", name) for name in known)]


def reads(backend: str, key: str) -> bool:
    """Whether backend ppo reads a key; of another backend, whether it is none of `ppo.*`."""
    return not unread([key]) if backend == "ppo" else key.partition(".")[0] != "ppo"


def refuse_unread(options: Sequence[str]) -> None:
    """Raises ConfigError if there are any."""
    if options:
        raise ConfigError(
            f"backend ppo asks no model, and does not read {', '.join(options)}: leave that out "
            "(ppo.steps says how long it learns, the other keys ppo.* how; see docs/ppo.md)"
        )


def check_settings(config: BaseModel) -> None:
    """Raises ConfigError for settings of a run that backend ppo does not read; defaults are
    none."""
    given = config.model_dump(mode="json", by_alias=True, exclude_defaults=True)
    refuse_unread(unread(key for key, _ in leaves(given)))


def count(value: Any) -> Any:
    """`10M`, `500k`, `1.5M`, `1e6` or `1_000_000`, as a number."""
    if not isinstance(value, str):
        return value
    if found := _COUNT.fullmatch(value.strip().lower()):
        digits, rest, unit = found.groups()
        number = Fraction(re.sub("[,_]", "", digits) + rest) * _UNITS[unit]
        if number.denominator == 1:
            return number.numerator
    raise ValueError("write a whole number such as 500k, 1.5M or 10M")


Count = Annotated[int, BeforeValidator(count)]
_Number = Annotated[float, Field(le=1e30, allow_inf_nan=False)]
"""That float32 holds."""


class PpoConfig(Frozen):
    """Backend ppo: small neural policies that play many games at once (arXiv 1707.06347)."""

    steps: Annotated[Count, Mark.RESUMABLE] = Field(1_000_000, ge=1, le=10**14)
    """Environment steps of the run: in each, all agents act once. Written 10M, 500k, or out."""
    source: Annotated[Path | None, Mark.MOVABLE] = Field(None, alias="from")
    """A run of backend ppo, or its checkpoint, as whose policy the learner begins (`ppo.from`). The
    run's first checkpoint holds a copy. None: weights are drawn."""
    games: int = Field(256, ge=1, le=65_536)
    """Games that are played at once, by all processes of a launch together."""
    horizon: int = Field(64, ge=1, le=65_536)
    """Steps of every game per batch: a batch has games x horizon steps."""
    passes: int = Field(2, ge=1, le=64)
    """How often each batch is learned from."""
    minibatch: int = Field(4096, ge=2)
    """Actions per step of the optimizer, of each policy; a batch is split evenly."""
    learning_rate: _Number = Field(3e-3, gt=0)
    """Of Adam."""
    anneal: bool = True
    """Lowers the learning rate and the entropy's weight to 0, in a straight line over the steps."""
    discount: float = Field(0.99, ge=0, le=1)
    """Of a reward one step later."""
    trace: float = Field(0.95, ge=0, le=1)
    """Lambda of the generalised advantage estimates (arXiv 1506.02438)."""
    clip: _Number = Field(0.2, gt=0)
    """An action's ratio to the policy that drew it is clipped to [1 - clip, 1 + clip]."""
    value_clip: Annotated[_Number, Field(gt=0)] | None = None
    """How far a value may move per batch, in units of scaled returns; None: any distance."""
    entropy: _Number = Field(0.01, ge=0)
    """Weight of the entropy bonus."""
    value: _Number = Field(0.5, ge=0)
    """Weight of the critic's squared error, halved."""
    norm: _Number = Field(0.5, gt=0)
    """The longest gradient of a policy; longer ones are shortened."""
    hidden: tuple[Annotated[int, Field(ge=1, le=16_384)], ...] = (64, 64)
    """Widths of the hidden layers, of policy and critic."""
    normalise: bool = True
    """Observations less their mean, by their standard deviation, both of all so far."""
    scale: bool = True
    """Rewards by the standard deviation of discounted returns so far."""
    reward: Literal["team", "own"] = "team"
    """What an agent learns from: the mean of all agents' rewards, or its own."""
    policies: Literal["shared", "own"] = "shared"
    """One policy for all agents (what they see says who they are), or one per agent."""
    critic: Literal["own", "central"] = "own"
    """What the critic sees: what its agent sees, or what all see (MAPPO, arXiv 2103.01955)."""
    pool: int = Field(8, ge=1, le=256)
    """Earlier versions of the policy that play where `agents.ROLE.plays` is `self`: each game has
    one, drawn when it begins (arXiv 1710.03748, section 3.2)."""
    pool_every: Count = Field(500_000, ge=1)
    """Steps after which the newest version joins the pool, in place of the oldest."""
    device: Annotated[Literal["auto", "cpu", "cuda"], Mark.RESUMABLE, Mark.OPERATIONAL] = "auto"
    """Where networks are computed; `auto`: a GPU if there is one. Games are played on the CPU."""
    threads: Annotated[int, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(1, ge=1, le=1024)
    """Of the processor, in each process. At this size more than one rarely helps."""
    checkpoint_every: Annotated[Count, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(1_000_000, ge=1)
    """Steps between two checkpoints; the last step always has one."""
    keep: Annotated[int, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(2, ge=1)
    """Checkpoints that stay on disk."""
    evaluate_every: Annotated[Count, Mark.RESUMABLE, Mark.OPERATIONAL] = Field(0, ge=0)
    """Steps between two evaluations on games of their own; 0: none."""
    evaluate_games: Annotated[int, Mark.RESUMABLE] = Field(256, ge=2, le=MOST)
    """Games per evaluation."""

    @model_validator(mode="after")
    def _enough(self) -> Self:
        if self.games * self.horizon < 2:
            raise ValueError("ppo.games x ppo.horizon is 1: a batch needs at least 2 steps")
        return self
