"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestry import AgentSpec

from .module import Module, Name

DOCUMENTER = AgentSpec(
    role="documenter",
    goal="Document every public function, class and method, with examples that are true.",
    system_prompt="You are a technical writer. You explain in plain sentences what functions do, "
    "what they return and what their parameters are, each with an example. You write no code.",
)
REVIEWER = AgentSpec(
    role="reviewer",
    goal="Correct what is wrong in the documentation and add what is missing.",
    system_prompt="You are a technical editor. Write the sections that are missing, and those that "
    "are wrong anew, in the same form; yours replace them. If nothing is missing or wrong, answer "
    "only LGTM. You write no code.",
)
RUBRIC = """\
Every sentence is true of the function that it stands under: of its arguments, its result, and \
what it raises. A false sentence is worth less than none, even where no example shows it.
A reader learns what the name alone does not say: what arguments are allowed, what happens at the \
edges, and in which unit or order things come. The examples show that, not the plainest call. \
Sentences that would fit any function are worth nothing. The reviewer keeps what is right."""
"""What the reward can't count (README, "Not caught"), for the judge."""
MAX_SOURCE = 6000
MAX_DRAFT = 4000
_FORM = """### {name}
Return ...

{params}>>> {call}
..."""


def for_documenter(module: Module) -> str:
    """The module, the names that are to be documented, and the form of a section."""
    first = module.names[0]
    params = "".join(f"{param}: ...\n" for param in first.params)
    params = f"{params}\n" if params else ""
    form = _FORM.format(name=first.qualified, params=params, call=call(first))
    wanted = ", ".join(name.qualified for name in module.names)
    asked = f"Explain {wanted}, each in a section of its own with this form:"
    return f"{_shown(module)}\n\n{asked}\n\n{form}"


def for_reviewer(module: Module, draft: Mapping[str, str], lacking: Iterable[str]) -> str:
    """The module, the draft's sections, and what they lack at first sight."""
    text = "\n\n".join(f"### {name}\n{said}" for name, said in draft.items())[:MAX_DRAFT]
    missing = "; ".join(lacking)
    found = f"Missing: {missing}." if missing else "Nothing is missing. Is all of it true?"
    return f"{_shown(module)}\n\nThe documentation so far:\n\n{text or '(none)'}\n\n{found}"


def call(name: Name) -> str:
    """How a name is called."""
    return f"{name.short}({', '.join(name.params)})"


def _shown(module: Module) -> str:
    return f"```python\n{module.source[:MAX_SOURCE].rstrip()}\n```"
