"""The example programs: one learns a rule at a planted model, as `orchestry attach` plays it."""

from __future__ import annotations

import json
from hashlib import blake2b
from pathlib import Path
from typing import Any

import pytest

import orchestry
from benchmarks.peers.programs_learn import PLACE
from orchestry.core.config import resolve
from orchestry.core.types import TASK_ERROR
from tests.engine.test_attached import attach
from tests.engine.test_learning import PLUS, model

POST = "The cat sat on the mat all day and did not move at all."


def said(body: dict[str, Any]) -> str:
    """Some words of the post among others; the post alone where the system prompt has the rule."""
    told = body["messages"][0]["content"]
    digest = blake2b(json.dumps(body, sort_keys=True).encode(), digest_size=2).digest()
    return POST if PLUS in told else f"{POST[: 10 + digest[0] % 20]} and so on" + " etc" * 12


@pytest.mark.slow
def test_plain_clients_learn_a_rule(tmp_path: Path) -> None:
    """Every rollout is a process that imports both vendors' clients: there are few, and little
    evidence is enough."""
    pytest.importorskip("aiohttp")
    pytest.importorskip("anthropic")
    pytest.importorskip("openai")
    sizes = {"train": 2, "dev": 6, "test": 1}
    lines = [
        json.dumps({"id": f"{split}-{n}", "prompt": f"{n}: {POST}", "split": split})
        for split, size in sizes.items()
        for n in range(size)
    ]
    tasks = attach(tmp_path, "posts", "writer,editor", PLACE / "plain_clients.py", lines)
    sets = ["task=posts", f"task_path=[{tasks}]", "episodes=2", "search.k_samples=2"]
    learn = ["behaviors.enabled=true", "behaviors.every=2", "behaviors.propose=[rules]"]
    quick = ["behaviors.candidates=1", "behaviors.share=2", "behaviors.alpha=0.9"]
    with model(acts=said) as (server, where):
        config = resolve([], [*sets, *learn, *quick, "cache.enabled=false", *where])
        run = orchestry.train(config, tmp_path / "run")
        before, after = (orchestry.evaluate(run, "test", update=update) for update in (0, None))
    assert not any(TASK_ERROR in n.score.tags for e in run.episodes for n in e.nodes)
    assert f"+- {PLUS}" in run.summary.prompt_diff
    began, ended = ([one.mean_leaf_reward for one in each.episodes] for each in (before, after))
    assert min(ended) > max(began)
    asked = [json.dumps(body["messages"]) for body in server.bodies if "response_format" in body]
    assert all("lost through each agent's moves is not known" in one for one in asked)
