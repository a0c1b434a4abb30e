"""The task that `orchestry tasks new` writes: small, whole, and passing its own check."""

from __future__ import annotations

import json
from pathlib import Path
from string import Template

TASK = Template('''"""$title: a drafter writes a sentence, an editor improves it."""

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import ClassVar

from orchestry import AgentSpec, Problem, Score, Split, TeamTask, Tools, Transcript, read_problems

BANK = Path(__file__).with_name("problems.jsonl")


class $class_name(TeamTask):
    name = "$name"
    agents = (
        AgentSpec(role="drafter", system_prompt="Answer in one short sentence."),
        AgentSpec(role="editor", system_prompt="Improve the draft. Answer in one short sentence."),
    )
    weights: ClassVar[Mapping[str, float]] = {"coverage": 0.8, "brevity": 0.2}

    def problems(self, split: Split) -> Sequence[Problem]:
        return read_problems(BANK, split)

    async def evaluate(self, state: Transcript, tools: Tools) -> Score:
        text = state.said[-1][1] if state.said else ""
        words = re.findall(r"\\w+", text.lower())
        wanted = state.problem.data["words"]
        missing = [word for word in wanted if word not in words]
        return self.score(
            coverage=1 - len(missing) / len(wanted),
            brevity=float(0 < len(words) <= 30),
            feedback=f"Missing words: {', '.join(missing) or 'none'}.",
        )

    def gold(self, problem: Problem) -> Mapping[str, str]:
        return {"drafter": "", "editor": problem.data["gold"]}
''')

README = Template("""# $title: one sentence that covers what matters

`task.py` holds the agents and the reward, `problems.jsonl` the problems. A line is one problem:
`id` (for good), `prompt` (what agents see), `split` (train, dev or test; ids never move) and `data`
(what the reward needs; agents never see it).

The reward is coverage (share of the wanted words in the last answer, 0.8) and brevity (at most 30
words, 0.2). `gold` gives answers that must score 1.0: `orchestry tasks check $name` plays them.
""")

_QUESTIONS = (
    ("train", "Why is the sky blue?", "Air scatters blue light more than red light."),
    ("train", "Why do we have seasons?", "The tilt of the axis turns each half to the sun."),
    ("train", "How does a plane stay up?", "Its wing pushes air down, which gives lift."),
    ("dev", "Why does ice float?", "Ice is less dense than water."),
    ("dev", "Why do leaves fall in autumn?", "A tree sheds leaves to save water in winter."),
    ("test", "What causes tides?", "The gravity of the moon pulls the ocean."),
    ("test", "Why does bread rise?", "Yeast eats sugar and gives off gas."),
)
_WANTED = (
    ("scatters", "light"),
    ("tilt", "axis", "sun"),
    ("wing", "lift"),
    ("dense", "water"),
    ("water", "winter"),
    ("gravity", "moon"),
    ("yeast", "gas"),
)


def write_task(folder: Path, name: str) -> None:
    """Writes task.py, problems.jsonl and README.md into a new folder."""
    words = [word for word in name.split("_") if word]
    title = " ".join(words).capitalize() or name
    camel = "".join(word[0].upper() + word[1:] for word in words)
    class_name = camel if camel.endswith("Task") else f"{camel}Task"
    values = {"name": name, "title": title, "class_name": class_name}
    folder.mkdir(parents=True)
    (folder / "task.py").write_text(TASK.substitute(values), encoding="utf-8")
    (folder / "README.md").write_text(README.substitute(values), encoding="utf-8")
    (folder / "problems.jsonl").write_text(_problems(), encoding="utf-8")


def _problems() -> str:
    lines = [
        {
            "id": f"q{number}",
            "prompt": prompt,
            "split": split,
            "data": {"words": wanted, "gold": gold},
        }
        for number, ((split, prompt, gold), wanted) in enumerate(
            zip(_QUESTIONS, _WANTED, strict=True), start=1
        )
    ]
    return "".join(f"{json.dumps(line)}\n" for line in lines)
