"""What mkdocs lacks: pages that lie outside docs/, such as each task's README, and links to them.

mkdocs calls these hooks (`mkdocs.yml`). Links keep the form that works where the files lie, on a
code host for instance; here they are led to the pages. One that leads nowhere fails a strict build.
"""

from __future__ import annotations

import posixpath
import re
from pathlib import Path
from typing import Any

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).resolve().parent.parent
LINK = re.compile(r"(\]\()([^)#\s:]+)(#[^)\s]*)?\)")
"""A Markdown link or image whose target is no address and no anchor of its own page."""

LISTED = {"Tasks": "tasks/", "Results": "results/"}
"""Sections of the navigation that hold all pages of a folder, each named by its folder."""


def outside() -> list[str]:
    """Files besides those in docs/ that the site holds, as paths in the repository."""
    readmes = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("tasks/*/README.md"))
    notebooks = sorted(path.relative_to(ROOT).as_posix() for path in ROOT.glob("notebooks/*.ipynb"))
    code = ROOT.glob("benchmarks/peers/programs/*.py")
    programs = sorted(path.relative_to(ROOT).as_posix() for path in code)
    more = ["CHANGELOG.md", "CONTRIBUTING.md", "benchmarks/README.md"]
    return [*readmes, *notebooks, *programs, *more]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the files of `outside`, at the same paths, and lists tasks and results."""
    for path in outside():
        files.append(File.generated(config, path, abs_src_path=str(ROOT / path)))
    pages = [file.src_uri for file in files.documentation_pages()]
    nav: list[dict[str, Any]] = config.nav or []
    for section in nav:
        for title, folder in LISTED.items():
            if title in section:
                found = sorted(path for path in pages if path.startswith(folder))
                section[title] = [{_title(path): path} for path in found]
    config.nav = [section for section in nav if all(section.values())]
    return files


def _title(path: str) -> str:
    """A page's folder, and its own name where it is no README."""
    *_, folder, name = path.removesuffix(".md").split("/")
    return folder if name == "README" else f"{folder}: {name}"


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Leads links between docs/ and the rest of the repository to where the site has the files."""
    own = page.file.src_uri
    place = own if own in outside() else f"docs/{own}"

    def led(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(place), link[2]))
        known = target.removeprefix("docs/")
        if files.get_file_from_path(known) is None:
            return link[0]
        return f"{link[1]}{posixpath.relpath(known, posixpath.dirname(own))}{link[3] or ''})"

    return LINK.sub(led, markdown)
