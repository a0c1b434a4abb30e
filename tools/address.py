"""Writes this repository's public address to all places that name it, from one command.

    python -m tools.address https://github.com/OWNER/NAME

The places: pyproject.toml ([project.urls]), CITATION.cff, the Colab badge of README.md, and the
notebook, which then no longer asks for it. Without an address (`""`) they are as they were before:
the badge opens Colab's own dialog, in which an address can be typed.
"""

from __future__ import annotations

import argparse
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
NOTEBOOK = "notebooks/magrpo_training.ipynb"
PLACES = ("pyproject.toml", "CITATION.cff", "README.md", NOTEBOOK)
COLAB = "https://colab.research.google.com/github/"


def known(root: Path = ROOT) -> str:
    """The address that pyproject.toml has; '' if it has none."""
    project = tomllib.loads((root / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return str(project.get("urls", {}).get("Repository", ""))


def write(address: str, root: Path = ROOT) -> None:
    """Puts the address in all places. Raises ValueError for one that Colab can't open."""
    found = re.fullmatch(r"https://github\.com/([\w.-]+/[\w.-]+?)(?:\.git)?/?", address)
    if address and not found:
        raise ValueError(f"'{address}' is not https://github.com/OWNER/NAME, which Colab opens")
    name = found[1] if found else ""
    base = f"https://github.com/{name}" if name else ""
    texts = {place: (root / place).read_text(encoding="utf-8") for place in PLACES}
    texts["pyproject.toml"] = _project(texts["pyproject.toml"], base)
    cited = re.sub(r"^repository-code: .*\n", "", texts["CITATION.cff"], flags=re.MULTILINE)
    line = f'repository-code: "{base}"\n' if base else ""
    texts["CITATION.cff"] = cited.replace("license: MIT\n", f"license: MIT\n{line}")
    badge = f"{COLAB}{name}/blob/main/{NOTEBOOK}" if name else COLAB
    texts["README.md"] = re.sub(rf"{re.escape(COLAB)}[^)]*", badge, texts["README.md"])
    texts[NOTEBOOK] = re.sub(
        r'REPOSITORY = \\"[^"\\]*\\"', f'REPOSITORY = \\\\"{base}\\\\"', texts[NOTEBOOK]
    )
    for place, text in texts.items():
        (root / place).write_text(text, encoding="utf-8")


def _project(text: str, base: str) -> str:
    """pyproject.toml with these urls, or without any."""
    rest = re.sub(r"^\[project\.urls\]\n(?:.+\n)*\n", "", text, flags=re.MULTILINE)
    if not base:
        return rest
    urls = {"Repository": base, "Issues": f"{base}/issues", "Discussions": f"{base}/discussions"}
    lines = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    return rest.replace("[project.scripts]\n", f"[project.urls]\n{lines}\n[project.scripts]\n")


def main() -> None:
    """Writes the address that was given."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("address", help="https://github.com/OWNER/NAME")
    write(parser.parse_args().address)


if __name__ == "__main__":
    main()
