"""What task writers need for their agents' tools."""

from __future__ import annotations

from orchestry.core.tools import Said as Said
from orchestry.core.tools import Tool as Tool
from orchestry.core.tools import ToolCall as ToolCall
from orchestry.core.tools import ToolContext as ToolContext
from orchestry.core.tools import calls_of as calls_of
from orchestry.core.tools import tool as tool
from orchestry.core.types import Call
from orchestry.task.mcp import mcp as mcp


async def _python(code: str, here: ToolContext) -> str:
    """Runs Python code in a sandbox, and returns what its function `main()` returns.

    The code must define `main`, without parameters. It sees no files and no network.
    """
    (found,) = await here.sandbox.run(code, "main", [Call()])
    if found.verdict == "value":
        return repr(found.value)
    return f"error: {found.verdict}: {found.why}\n{found.trace}".strip()


python = tool(_python, name="python", effects=False)
"""A tool that agents may have: `AgentSpec(role="coder", tools=[tools.python])`."""
