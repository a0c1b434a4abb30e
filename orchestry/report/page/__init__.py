"""One self-contained HTML page about runs, with a browser for their episodes.

The page is assembled from the files beside this one; its data are JSON in script elements that no
browser executes. A content security policy allows one script and one style sheet, by hash, and
forbids every request, so a model's text can't do anything there.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path

from orchestry.core.files import write_atomic
from orchestry.report.page.content import CAP, page_data
from orchestry.report.runs import Experiment

SCRIPTS = (
    *("dom.js", "data.js", "chart.js", "compare.js", "steps.js", "run.js", "around.js"),
    *("learned.js", "episodes.js", "tree.js", "detail.js", "live.js", "page.js"),
)
"""One script, in this order."""


def write_page(experiments: Sequence[Experiment], folder: Path, cap: int = CAP) -> Path:
    """Writes index.html into the folder; the same runs give the same bytes.

    `cap`: maximum bytes of the episodes' trees. Further trees are left out, and the page says so.
    Raises OSError if the disk refuses, StoreError if a run can't be read.
    """
    path = folder / "index.html"
    folder.mkdir(parents=True, exist_ok=True)
    write_atomic(path, assemble(page_data(experiments, cap)))
    return path


def assemble(blocks: Mapping[str, str], served: bool = False) -> bytes:
    """The page with these data: JSON by the id of its element. `served`: it may ask its own
    server."""
    style, script = _read("page.css"), "\n".join(map(_read, SCRIPTS))
    asks = "'self'" if served else "'none'"
    fields = {
        "policy": f"default-src 'none'; style-src {_hash(style)}; script-src {_hash(script)}; "
        f"connect-src {asks}; "
        "img-src data:; base-uri 'none'; form-action 'none'",
        "style": style,
        "data": "\n".join(_data(name, text) for name, text in blocks.items()),
        "script": script,
    }
    page = re.sub(r"\{\{(\w+)\}\}", lambda field: fields[field[1]], _read("page.html"))
    return page.encode("utf-8")


def _read(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


def _hash(text: str) -> str:
    digest = hashlib.sha256(text.encode("utf-8")).digest()
    return f"'sha256-{base64.b64encode(digest).decode('ascii')}'"


def _data(name: str, text: str) -> str:
    return f'<script type="application/json" id="{name}">{text}</script>'
