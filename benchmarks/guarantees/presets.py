"""What shipped presets cost by the dry run, beside the defaults: a table in docs/costs.md.

Each row is one `orchestry run --dry-run` in an empty folder, so that no earlier run shows it how
long answers are. Nothing is called and nothing is paid.

    python -m benchmarks.guarantees.presets [--write]
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import page
from benchmarks.server.loopback import ROOT

COMMAND = "python -m benchmarks.guarantees.presets --write"
PAGE = ROOT / "docs" / "costs.md"
ROWS = {
    "the defaults": (),
    "`--config seeds`": ("--config", "seeds"),
    "`--config seeds --set behaviors.enabled=false`": (
        *("--config", "seeds"),
        *("--set", "behaviors.enabled=false"),
    ),
}
_BLOCK = re.compile(r"(<!-- presets -->\n).*?(<!-- end of presets -->)", re.DOTALL)


def forecast(flags: tuple[str, ...], folder: Path) -> dict[str, Any]:
    """What the dry run of these flags prints as JSON."""
    command = [sys.executable, "-m", "orchestry", "run", "--dry-run", "--json"]
    command += ["--provider", "anthropic", "--budget", "100", *flags]
    environ = os.environ | {"PYTHONPATH": str(ROOT), "XDG_CACHE_HOME": str(folder)}
    done = subprocess.run(command, cwd=folder, env=environ, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"{' '.join(command)} failed: {done.stderr.strip()[-1000:]}")
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def table(found: Mapping[str, Mapping[str, Any]]) -> str:
    """The forecasts by their flags, as a table."""
    lines = [
        "| 20 episodes of code_review with | calls | tokens in | tokens out | dollars | p5 to p95 |"
    ]
    lines.append("|---|---|---|---|---|---|")
    for name, one in found.items():
        usd = one["cost_usd"]
        lines.append(
            f"| {name} | {one['calls']:,} | {one['input_tokens']:,} | {one['output_tokens']:,} | "
            f"**{usd['expected']:.2f}** | {usd['p5']:.2f} to {usd['p95']:.2f} |"
        )
    return "\n".join(lines)


def put(text: str, place: Path = PAGE) -> None:
    """Puts the text between the page's marks. Raises ValueError if it has none."""
    old = place.read_text(encoding="utf-8")
    if not _BLOCK.search(old):
        raise ValueError(f"{place} has no line '<!-- presets -->': put it where the table is to be")
    place.write_text(
        _BLOCK.sub(lambda marks: f"{marks[1]}{text}\n{marks[2]}", old), encoding="utf-8"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--write", action="store_true", help="put the table into docs/costs.md")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        found = {row: forecast(flags, Path(name)) for row, flags in ROWS.items()}
    model = next(iter(found.values()))["model"]
    when = f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC, {page.revision()}, {page.machine()}"
    text = f"By `{COMMAND}`, {when}; prices of {model}:\n\n{table(found)}"
    put(text) if given.write else print(text)


if __name__ == "__main__":
    main()
