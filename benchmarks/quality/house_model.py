"""A scripted model for the task house_style: it obeys the rules in its prompt, and has habits.

It keeps every convention that its system prompt states as a rule. Of the others it has habits,
drawn from a seed: most it breaks, a few it keeps by itself. As an editor it leaves a draft as it
is where it knows no rule, but at times rewrites it by habit. Asked to distil, it writes rules about
conventions that the feedback shown to it names, and at times a rule that says nothing. Asked for a
whole prompt, it puts into the present one half of the conventions that the feedback names. It
learns nothing from examples. All of it is a function of the request and the seed.
"""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from typing import Any

from orchestry.core.seeds import derive
from orchestry.core.types import SPLITS, Problem
from orchestry.task.registry import load_task

TASK = load_task("house_style")
BRIEF, CONVENTIONS, PROMPTS, REWARD = (
    import_module(f"orchestry_tasks.house_style.{name}")
    for name in ("brief", "conventions", "prompts", "reward")
)
PROBLEMS: dict[str, Problem] = {
    problem.id: problem for split in SPLITS for problem in TASK.problems(split)
}
RULES: dict[str, str] = {one.name: f"{one.rule}." for one in CONVENTIONS.CONVENTIONS}
WEIGHTS: dict[str, float] = {one.name: one.weight for one in CONVENTIONS.CONVENTIONS}
KEPT_BY_ITSELF = 4.0
"""Weight of the conventions that the model keeps without a rule, at least."""
BREAKS, SLIPS = 0.85, 0.1
"""How often it breaks a convention against its habit, and one that it keeps by itself."""
REWRITES = 0.1
"""How often an editor without a rule falls back into its habit."""
USELESS_SHARE = 0.25
USELESS = (
    "Read the request twice before you begin to answer it.",
    "Think about who is going to read this.",
    "Prefer strong verbs over weak nouns wherever possible.",
    "Keep a calm and friendly tone throughout.",
    "Check spelling and grammar at the end.",
    "Vary how your paragraphs open.",
    "Use concrete words, never vague ones.",
    "Give each idea its proper place.",
    "Make every claim easy to verify for outsiders.",
    "Stay faithful to all source material given.",
    "Avoid jargon that newcomers cannot follow.",
    "Remember that brevity is a virtue.",
    "Finish with something memorable if there's room.",
    "Ask yourself whether anything else was left open.",
    "Aim at clarity first, elegance second.",
    "Format your output neatly.",
)
"""Rules without an effect on this model."""
_ISSUE = re.compile(r"\b\d{4}\b")
_REMARK = re.compile(rf"^- ({'|'.join(map(re.escape, RULES))}): ", re.MULTILINE)
_PRESENT = re.compile(r"begin system prompt of the \w+\]\n(.*?)\n\[\w+ end system", re.DOTALL)
_ROLE = re.compile(r"behaviours for the (\w+)")


@dataclass(frozen=True)
class Model:
    """One model: its seed draws its habits and its luck. `per_rule`: conventions that it puts into
    one distilled rule."""

    seed: int
    per_rule: int = 1

    @cached_property
    def habits(self) -> Mapping[str, float]:
        """How often it breaks each convention that no rule of its prompt states."""
        rng, kept = random.Random(derive("house", "habits", self.seed)), 0.0
        found = dict.fromkeys(RULES, BREAKS)
        for name in rng.sample([*RULES], len(RULES)):
            if kept < KEPT_BY_ITSELF:
                found[name], kept = SLIPS, kept + WEIGHTS[name]
        return found

    def answer(self, system: str, user: str, draw: str, schema: Mapping[str, Any] | None) -> str:
        """What it says to a request; `draw` is what its luck depends on besides the seed."""
        rng = random.Random(derive("house", self.seed, draw))
        if schema is not None:
            return self._distilled(system, user, schema, rng)
        if user.startswith("Draft of the "):
            return self._edited(system, user, rng)
        brief = BRIEFS_BY_PROMPT[user]
        return rendered(brief, self._broken(known(system), rng))

    def _broken(self, rules: Collection[str], rng: random.Random) -> set[str]:
        drawn = {name for name, chance in self.habits.items() if rng.random() < chance}
        return drawn.difference(rules)

    def _edited(self, system: str, user: str, rng: random.Random) -> str:
        draft = user.split("\n", 1)[1].removesuffix("\n\nEdit it.")
        found = [issue for issue in _ISSUE.findall(draft) if int(issue) in BRIEFS_BY_ISSUE]
        if not found:
            return draft
        brief, rules = BRIEFS_BY_ISSUE[int(found[-1])], known(system)
        habit = self._broken(rules, rng)
        had = set(CONVENTIONS.broken(draft, brief)).difference(rules)
        falls = {name for name in RULES if rng.random() < REWRITES}
        return rendered(brief, (had - falls) | (habit & falls))

    def _distilled(
        self, system: str, user: str, schema: Mapping[str, Any], rng: random.Random
    ) -> str:
        """Rules about conventions that were broken, the more often the likelier; none that stands
        in the request already."""
        named = Counter(name for name in _REMARK.findall(user) if RULES[name] not in user)
        if "behaviors" not in schema["properties"]:
            return json.dumps({"why": "The feedback.", "text": _whole(user, named, rng)})
        count = schema["properties"]["behaviors"]["maxItems"]
        useless = [text for text in USELESS if text not in user]
        texts = list[str]()
        for _ in range(count):
            if useless and (not named or rng.random() < USELESS_SHARE):
                texts.append(useless.pop(rng.randrange(len(useless))))
                continue
            chosen = _drawn(named, self.per_rule, rng)
            texts += [" ".join(RULES[name] for name in chosen)] if chosen else []
        answer = [{"why": "The feedback names it.", "text": text} for text in texts]
        return json.dumps({"behaviors": answer})


def _whole(user: str, named: Counter[str], rng: random.Random) -> str:
    """The prompt in the request, and rules about half of what is named."""
    present = _PRESENT.search(user)
    assert present is not None, "the request shows no prompt"
    chosen = _drawn(named, -(-len(named) // 2), rng)
    return "\n".join([present[1], *(RULES[name] for name in chosen)])


def known(system: str) -> set[str]:
    """The conventions that a system prompt states as rules."""
    return {name for name, rule in RULES.items() if rule in system}


def reward(model: Model, problem: str, rules: str) -> float:
    """What one trajectory of its team earns, with these rules in the editor's prompt."""
    brief, prompt = BRIEF.Brief.of(PROBLEMS[problem]), PROBLEMS[problem].prompt
    writer, editor = PROMPTS.WRITER.system_prompt, PROMPTS.EDITOR.system_prompt
    draft = model.answer(writer, prompt, f"draft {problem}", None)
    asked = PROMPTS.for_editor(brief.kind, draft)
    text = model.answer(f"{editor}\n{rules}", asked, f"text {problem}", None)
    return TASK.score(**REWARD.parts(text, brief)).total


def rendered(brief: Any, broken: Collection[str]) -> str:
    """The brief's text, with all its facts, against these conventions and no others."""
    forms = {**brief.house, **_rough(brief, broken)}
    effect, reason, change = brief.written(forms)
    if "asides" in broken:
        effect = f"{effect.removesuffix('.')} (as reported)."
    if "person" in broken:
        reason = f"We know that {_lower(reason)}"
    if "adverbs" in broken:
        change = f"Finally, {change}"
    if "sentence length" in broken:
        change = f"{change.removesuffix('.')}, and that holds for all who work with it in {TAIL}."
    first = [reason, effect] if "effect first" in broken else [effect, reason]
    label = [] if "severity label" in broken else [forms["severity"]]
    return " ".join([*label, *first, change, *_last(brief, broken, forms)])


TAIL = "the months that come, at home as well as on the road"


def _rough(brief: Any, broken: Collection[str]) -> dict[str, str]:
    """The forms of facts that differ from the house's."""
    forms = {
        "product": ("product", brief.product),
        "code": ("code", brief.code),
        "date": ("date", brief.rough_date),
        "unit": ("amount", brief.rough_amount),
        "digits": ("count", brief.rough_count),
    }
    return {fact: form for name, (fact, form) in forms.items() if name in broken}


def _last(brief: Any, broken: Collection[str], forms: Mapping[str, str]) -> list[str]:
    """What stands behind the three sentences."""
    severity, owner = f"The severity is {brief.severity}.", f"The {brief.owner} team has it."
    return [
        *(["That's all there is to say."] if "contractions" in broken else []),
        *(["It should stay so."] if "modals" in broken else []),
        *([severity] if "severity label" in broken else []),
        owner if "owner" in broken else forms["owner"],
        f"See issue #{brief.issue}." if "issue at the end" in broken else forms["issue"],
    ]


def _lower(sentence: str) -> str:
    """For the middle of a sentence: names keep their capital."""
    return sentence[:1].lower() + sentence[1:]


def _drawn(named: Counter[str], count: int, rng: random.Random) -> Sequence[str]:
    """Takes at most so many names out of the counter, by how often they came."""
    chosen = list[str]()
    while named and len(chosen) < count:
        name = rng.choices([*named], [*named.values()])[0]
        del named[name]
        chosen.append(name)
    return chosen


BRIEFS_BY_PROMPT = {problem.prompt: BRIEF.Brief.of(problem) for problem in PROBLEMS.values()}
BRIEFS_BY_ISSUE = {brief.issue: brief for brief in BRIEFS_BY_PROMPT.values()}
