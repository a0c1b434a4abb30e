"""What the agents read: short and plain, for small models too."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from orchestry import AgentSpec

from .module import Module, Name

DOCUMENTER = AgentSpec(
    role="documenter",
    goal="Document every public function, class and method, with examples that are true.",
    system_prompt="You document Python code. For each name, write a heading with the name, then "
    "one or two sentences that say what it does and what it returns, then a line for each "
    "parameter, then an example with >>> and the value that comes out.",
)
REVIEWER = AgentSpec(
    role="reviewer",
    goal="Correct what is wrong in the documentation and add what is missing.",
    system_prompt="You review the documentation of Python code. Write anew, in the same form, the "
    "sections that are missing or wrong; yours replace them. If nothing is missing or wrong, "
    "answer only LGTM.",
)
MAX_SOURCE = 6000
MAX_DRAFT = 4000
_FORM = """### {name}
Return ... the value of ...

{params}>>> {call}
..."""


def for_documenter(module: Module) -> str:
    """The module, the names that are to be documented, and the form of a section."""
    first = module.names[0]
    params = "".join(f"{param}: what it is\n" for param in first.params)
    params = f"{params}\n" if params else ""
    form = _FORM.format(name=first.qualified, params=params, call=call(first))
    wanted = ", ".join(name.qualified for name in module.names)
    return f"{_shown(module)}\n\nDocument: {wanted}.\n\nStart like this:\n\n{form}"


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
