"""The marks on the config's fields: which keys a resume takes, a measurement depends on, and so on.

The five lists that stood in five files before are written out here, with what they lacked.
"""

from __future__ import annotations

from typing import Any

import pytest

from orchestry.core.config import RunConfig, resolve, validate
from orchestry.core.errors import ConfigError
from orchestry.core.resolve import Mark, leaves, marked, marks

EVERY: dict[str, Any] = {
    "weights": {"length": 2.0},
    "options": {"a": {"b": 1}},
    "agents": {"writer": {"max_tokens": 3}, "a.b": {"model": "m"}},
    "judge": {"provider": {"base_url": "http://127.0.0.1:1"}},
    "behaviors": {"provider": {"base_url": "http://127.0.0.1:1"}},
    "prices": {"m": {"input": 0, "output": 0}},
}
"""A value where the default has none, so that every key has a leaf."""
KEYS = [key for key, _ in leaves(validate(EVERY).model_dump(mode="json", by_alias=True))]
RESUMABLE = (
    *("allow_unsafe_code", "budget", "cache", "episodes", "judge.provider.base_url"),
    *(
        "learn.device",
        "learn.evaluate_every",
        "learn.gradient_checkpointing",
        "learn.keep",
        "learn.keep_every",
    ),
    *(
        "learn.decay",
        "learn.critic_rate",
        "learn.learning_rate",
        "learn.micro_tokens",
        "learn.vllm_url",
        "provider.base_url",
    ),
    *("provider.timeout_s", "retry", "search.concurrency", "task_path", "trackers"),
    *("behaviors.provider", "executor", "ranks", "pace", "passes"),
)
MEASURED = (
    *("task", "backend", "seed", "options", "weights", "provider", "sampling", "agents"),
    *("search.strategy", "search.k_samples", "search.beam_width", "search.exploration"),
    *("search.joint", "learn.top_p", "learn.top_k", "learn.dtype", "learn.quantize", "problem"),
    "learn.roles",
)
MUTE = (
    *(
        "allow_unsafe_code",
        "budget",
        "cache",
        "learn.keep",
        "learn.keep_every",
        "learn.threads",
        "pace",
        "provider.timeout_s",
    ),
    *("retry", "sandbox", "search.concurrency", "search.episodes_in_flight", "task_path"),
    *("trackers", "executor", "ranks"),
)
HEADERS = (
    "provider.headers",
    "judge.provider.headers",
    "agents.NAME.provider.headers",
)
LISTS = {
    Mark.RESUMABLE: (
        *(*RESUMABLE, "judge.provider.timeout_s", *HEADERS),
        *("agents.NAME.provider.base_url", "agents.NAME.provider.timeout_s"),
        *("ppo.steps", "ppo.device", "ppo.threads", "ppo.checkpoint_every", "ppo.keep"),
        *("ppo.evaluate_every", "ppo.evaluate_games"),
    ),
    Mark.MOVABLE: (
        "behaviors.from",
        "learn.from",
        "ppo.from",
        "provider.recording",
        "judge.provider.recording",
        "behaviors.provider.recording",
        "agents.NAME.provider.recording",
        "provider.team",
        "judge.provider.team",
        "behaviors.provider.team",
        "agents.NAME.provider.team",
        "agents.NAME.plays",
    ),
    Mark.MEASURED: MEASURED,
    Mark.OPERATIONAL: (
        *(*MUTE, "judge.provider.timeout_s", "behaviors.provider.timeout_s", *HEADERS),
        "behaviors.provider.headers",
        "agents.NAME.provider.timeout_s",
        *("learn.device", "learn.micro_tokens", "learn.gradient_checkpointing"),
        *("ppo.device", "ppo.threads", "ppo.checkpoint_every", "ppo.evaluate_every", "ppo.keep"),
    ),
    Mark.ADDRESS: (
        *("provider.base_url", "judge.provider.base_url", "agents.NAME.provider.base_url"),
        *("behaviors.provider.base_url", "learn.vllm_url", "executor"),
    ),
}
"""What the lists of before said; the providers of judge and author are as the run's own, and
reports leave out where and in what pieces the weights were computed."""


@pytest.mark.parametrize("mark", Mark, ids=lambda mark: mark.name.lower())
def test_each_mark_says_what_its_list_said(mark: Mark) -> None:
    assert len(KEYS) > 120
    for key in KEYS:
        named = key.replace("agents.writer.", "agents.NAME.").replace("agents.a.b.", "agents.NAME.")
        listed = any(
            own == one or own.startswith(f"{one}.") for own in (key, named) for one in LISTS[mark]
        )
        assert (mark in marks(RunConfig, key)) == listed, key


@pytest.mark.parametrize("mark", Mark, ids=lambda mark: mark.name.lower())
def test_the_marked_keys_can_be_listed(mark: Mark) -> None:
    assert sorted(marked(RunConfig, mark)) == sorted(LISTS[mark])


def test_a_section_is_listed_for_the_keys_in_it() -> None:
    assert Mark.RESUMABLE in marks(RunConfig, "budget.usd")
    assert Mark.MEASURED in marks(RunConfig, "options.provider.base_url")
    assert marks(RunConfig, "unknown.key") == frozenset()


@pytest.mark.parametrize(
    "key",
    [
        *("provider.base_url", "judge.provider.base_url", "agents.a.provider.base_url"),
        "learn.vllm_url",
    ],
)
def test_an_address_with_a_password_is_refused(key: str) -> None:
    raw: Any = "http://me:secret@host"
    for name in reversed(key.split(".")):
        raw = {name: raw}
    with pytest.raises(ConfigError, match=f"'{key}' has a user, password or query"):
        validate(raw)


def test_a_vendors_address_may_name_a_version_and_no_key() -> None:
    address = "https://h/openai?api-version=2024-12-01-preview"
    assert resolve([], [f"provider.base_url={address}"]).provider.base_url == address
    for query in ("key=abc", "api_key=abc", "sig=x", "token=x", f"x={'a' * 30}"):
        with pytest.raises(ConfigError, match="may stand in OPENAI_BASE_URL") as raised:
            resolve([], [f"provider.base_url=https://h/v1?{query}"])
        assert "abc" not in str(raised.value)
    with pytest.raises(ConfigError, match="user, password or query"):
        resolve([], ["learn.vllm_url=http://h:1?api-version=1"])
