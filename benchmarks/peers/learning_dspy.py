"""DSPy's optimisers on a team that another process plays: peers of benchmarks.quality.learning.

    python -m benchmarks.peers.learning_dspy bootstrap|mipro

Runs in .envs/dspy; see learning_line for the connection. The program has one Predict per agent,
with the agent's system prompt as its instructions. The other process plays the whole team, as for
all contestants, and the predictors are then told what their agent answered: from that DSPy takes
its traces, demos and scores. An agent's system prompt is its instructions and its demos.

`bootstrap` is BootstrapFewShotWithRandomSearch and `mipro` MIPROv2, both with their defaults, but

- nobody is shown gold answers, so there are no labelled demos;
- MIPROv2's `auto` is off: with few calls its six candidates would spend all of them on demos and
  proposals, so there are three at fewer than 800 calls, and trials until the calls are spent;
- a play becomes a demo if it earned half of the reward or more, for nearly every play earns some;
- where the calls are spent, plays earn 0 and reflections are empty: the best program so far wins.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Callable, Mapping
from functools import partial
from types import SimpleNamespace
from typing import Any

import dspy
from dspy.utils.exceptions import AdapterParseError

from benchmarks.peers.learning_line import Line, serve

THRESHOLD = 0.5
"""Reward from which a play becomes a demo."""
Play = Callable[[Mapping[str, str], str], Any]
Text = tuple[tuple[str, str], ...]
"""Roles with their system prompts."""


class Lm(dspy.BaseLM):  # type: ignore[misc]
    """A language model that asks a function."""

    def __init__(self, answer: Callable[[list[dict[str, str]]], str]) -> None:
        super().__init__("team", cache=False)
        self._answer = answer

    def forward(
        self, prompt: str | None = None, messages: list[Any] | None = None, **kwargs: Any
    ) -> Any:
        """A response of OpenAI's shape."""
        text = self._answer(messages or [{"role": "user", "content": prompt or ""}])
        text = text or " "  # an empty answer is an error to DSPy
        choice = SimpleNamespace(
            message=SimpleNamespace(content=text), finish_reason="stop", index=0
        )
        return SimpleNamespace(choices=[choice], usage={}, model=self.model)


class Plain(dspy.Adapter):  # type: ignore[misc]
    """An agent sees its input, and its whole answer is the output."""

    def format(self, signature: Any, demos: Any, inputs: Any) -> list[dict[str, str]]:
        return [{"role": "user", "content": inputs["seen"]}]

    def parse(self, signature: Any, completion: str) -> dict[str, str]:
        return {"answer": completion}


class Lenient(dspy.ChatAdapter):  # type: ignore[misc]
    """DSPy's own, for its proposals; where a small model's answer lacks the markers, all of it is
    the output, so that it can take part at all."""

    def parse(self, signature: Any, completion: str) -> Any:
        try:
            return super().parse(signature, completion)
        except AdapterParseError:
            (name,) = signature.output_fields
            return {name: completion}


class Team(dspy.Module):  # type: ignore[misc]
    """A team of agents works on a problem. Each agent answers what it sees; a reward rates the
    whole work."""

    def __init__(self, play: Play, prompts: Mapping[str, str]) -> None:
        super().__init__()
        self.play = play
        self.agents = {
            role: dspy.Predict(dspy.Signature("seen -> answer", text))
            for role, text in prompts.items()
        }

    def forward(self, problem: str) -> Any:
        play = self.play(prompts_of(self), problem)
        for turn in play["turns"]:
            with dspy.context(lm=Lm(partial(_said, turn)), adapter=Plain()):
                self.agents[turn["agent"]](seen=turn["saw"])
        return dspy.Prediction(reward=play["reward"])


def _said(turn: Mapping[str, str], messages: Any) -> str:
    return turn["answered"]


def prompts_of(team: Team) -> dict[str, str]:
    """The system prompts that stand for the program: instructions, then demos."""
    return {role: _prompt(predictor) for role, predictor in team.agents.items()}


def _prompt(predictor: Any) -> str:
    demos = [
        f"Example:\n\nInput: {demo['seen']}\n\nOutput: {demo['answer']}" for demo in predictor.demos
    ]
    return "\n\n".join([predictor.signature.instructions, *demos])


def metric(example: Any, prediction: Any, trace: Any = None) -> float:
    """The reward."""
    return float(prediction.reward)


def optimise(line: Line, optimiser: str) -> None:
    """Compiles the program until the calls are made, reports."""
    order = line.order
    dspy.configure(lm=Lm(line.reflect), adapter=Lenient(use_json_adapter_fallback=False))

    cut_off = set[Text]()

    def play(prompts: Mapping[str, str], problem: str) -> Any:
        (played,) = line.play(prompts, [problem])
        if played is None:
            cut_off.add(tuple(prompts.items()))
        return played or {"reward": 0.0, "turns": []}

    start = Team(play, order["prompts"])
    train, dev = (_examples(order[split]) for split in ("train", "dev"))
    random.Random(order["seed"]).shuffle(train)  # DSPy's own shuffles are the same in every run
    shared = {"max_labeled_demos": 0, "metric_threshold": THRESHOLD}
    if optimiser == "bootstrap":
        search = dspy.BootstrapFewShotWithRandomSearch(metric, **shared)
        best = search.compile(start, trainset=train, valset=dev)
    else:
        seed, count = 9 + order["seed"], max(3, min(6, order["calls"] // 200))
        search = dspy.MIPROv2(metric, auto=None, num_candidates=count, seed=seed, **shared)
        trials = {"num_trials": order["calls"] // len(dev), "minibatch": False}
        best = search.compile(start, trainset=train, valset=dev, **trials)
    _report(line, start, best, cut_off)


def _examples(problems: Mapping[str, str]) -> list[Any]:
    """The text is what the proposers describe the data by; a play needs the id only."""
    return [
        dspy.Example(problem=name, text=text).with_inputs("problem")
        for name, text in problems.items()
    ]


def _report(line: Line, start: Team, best: Team, cut_off: set[Text]) -> None:
    """Every program that was evaluated to its end, what it started from first."""
    first, last = _text(start), _text(best)
    rewards = {first: 0.0, last: 0.0}
    for row in best.candidate_programs:
        text = _text(row["program"])
        if text not in cut_off or text in (first, last):
            rewards[text] = max(rewards.get(text, 0.0), float(row["score"]) / 100)
    texts = [*rewards]
    kept = [{"prompts": dict(text), "dev": rewards[text]} for text in texts]
    line.done(kept, texts.index(last))


def _text(team: Team) -> Text:
    return tuple(prompts_of(team).items())


if __name__ == "__main__":
    serve(partial(optimise, optimiser=sys.argv[1]))
