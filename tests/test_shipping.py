"""What ships: workflows, image, citation and distributions say what the checkout says."""

from __future__ import annotations

import fnmatch
import io
import re
import tarfile
import tomllib
import zipfile
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet

import orchestry
from tools.dist import faults, oldest

ROOT = Path(__file__).resolve().parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
WHEEL = "orchestry_marl-1.0-py3-none-any.whl"
TRACKED = {"orchestry/__init__.py", "tasks/a/task.py", "tests/test_a.py"}
HELD = {"orchestry/__init__.py", "orchestry/_bundled/tasks/a/task.py"}


def workflow(name: str) -> dict[str, Any]:
    """The jobs of a workflow."""
    path = ROOT / ".github" / "workflows" / f"{name}.yml"
    loaded = yaml.safe_load(path.read_text(encoding="utf-8"))
    return dict(loaded["jobs"])


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job["steps"] if "run" in step]


def pythons(jobs: dict[str, Any]) -> set[str]:
    """The versions of Python that jobs set up, those of a matrix included."""
    asked = {
        str(step["with"]["python-version"])
        for job in jobs.values()
        for step in job["steps"]
        if "python-version" in step.get("with", {})
    }
    matrices = [job["strategy"]["matrix"]["python"] for job in jobs.values() if "strategy" in job]
    return {one for one in asked if not one.startswith("$")}.union(*matrices)


def test_workflows_call_the_scripts_that_run_here_too() -> None:
    assert commands(workflow("ci")["run"]) == [".ci/run"]
    release = workflow("release")
    called = {name: commands(job) for name, job in release.items()}
    assert called == {
        "build": [".ci/release dist"],
        "check": [".ci/release --check dist"],
        "upload": [],
    }
    for script in ("run", "release"):
        assert (ROOT / ".ci" / script).stat().st_mode & 0o100


def test_only_the_approved_job_may_upload_and_after_all_checks() -> None:
    release = workflow("release")
    assert release["upload"]["environment"] == "pypi"
    assert (release["check"]["needs"], release["upload"]["needs"]) == ("build", "check")
    assert [name for name, job in release.items() if "permissions" in job] == ["upload"]


@pytest.mark.parametrize("name", ["ci", "release"])
def test_workflows_use_the_pythons_that_the_package_is_for(name: str) -> None:
    prefix = "Programming Language :: Python :: "
    said = {c.removeprefix(prefix) for c in PROJECT["classifiers"] if c.startswith(prefix)}
    assert pythons(workflow(name)) == said
    assert all(SpecifierSet(PROJECT["requires-python"]).contains(version) for version in said)


def test_the_oldest_dependencies_are_checked_with_the_oldest_python() -> None:
    (oldest_python,) = pythons({"build": workflow("release")["build"]})
    assert PROJECT["requires-python"] == f">={oldest_python}"


def test_the_citation_is_of_this_version() -> None:
    cited = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert (cited["version"], cited["license"]) == (orchestry.__version__, PROJECT["license"])


def test_the_image_runs_as_a_user_without_rights() -> None:
    lines = (ROOT / "Dockerfile").read_text(encoding="utf-8").splitlines()
    final = lines[max(i for i, line in enumerate(lines) if line.startswith("FROM ")) :]
    (user,) = [line.split()[1] for line in final if line.startswith("USER ")]
    assert re.fullmatch(r"[1-9]\d*:[1-9]\d*", user)
    chowned = [line for line in final if "--chown=" in line]
    assert all(f"--chown={user}" in line for line in chowned)
    services = yaml.safe_load((ROOT / "compose.yaml").read_text(encoding="utf-8"))["services"]
    for service in services.values():
        assert user in service["user"]
        assert service["read_only"]
        assert (service["cap_drop"], service["tmpfs"]) == (["ALL"], ["/tmp"])


def test_the_build_is_given_what_the_wheel_needs_and_nothing_else() -> None:
    lines = (ROOT / ".dockerignore").read_text(encoding="utf-8").splitlines()
    rules = [line for line in lines if line and not line.startswith("#")]
    kept = {rule[1:] for rule in rules if rule.startswith("!")}
    assert rules[0] == "*"
    build = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))
    wheel = build["tool"]["hatch"]["build"]["targets"]["wheel"]
    needed = {*wheel["packages"], *wheel["force-include"], PROJECT["readme"]}
    assert kept == needed | {*PROJECT["license-files"], "constraints.txt", "pyproject.toml"}
    for left_out in ("runs", ".git", ".env", "tests"):
        assert not any(fnmatch.fnmatch(left_out, pattern) for pattern in kept)


def dist(folder: Path, held: set[str], packed: set[str]) -> Path:
    """A folder with a wheel that holds these files and a source distribution with those."""
    with zipfile.ZipFile(folder / WHEEL, "w") as wheel:
        wheel.writestr("orchestry_marl-1.0.dist-info/METADATA", "Version: 1.0\n")
        for name in held:
            wheel.writestr(name, "")
    with tarfile.open(folder / "orchestry_marl-1.0.tar.gz", "w:gz") as tar:
        for name in packed:
            tar.addfile(tarfile.TarInfo(f"orchestry_marl-1.0/{name}"), io.BytesIO())
    return folder


def test_distributions_hold_what_is_committed_and_nothing_else(tmp_path: Path) -> None:
    good = dist(tmp_path, HELD, TRACKED | {"PKG-INFO"})
    assert list(faults(good, TRACKED, "v1.0")) == []
    assert list(faults(good, TRACKED, "v1.1")) == [
        "the tag is v1.1, but the version is 1.0: tag v1.0"
    ]
    bad = dist(
        tmp_path, {"orchestry/__init__.py", "tests/test_a.py"}, {*TRACKED, "PKG-INFO", "key"}
    )
    assert list(faults(bad, TRACKED)) == [
        f"{WHEEL} lacks orchestry/_bundled/tasks/a/task.py",
        f"{WHEEL} holds tests/test_a.py",
        "orchestry_marl-1.0.tar.gz holds key",
    ]


def test_the_oldest_dependencies_are_those_that_pyproject_states() -> None:
    required = ["numpy>=2.0", 'openai[aiohttp]>=2.54; extra == "openai"', 'a>=1; extra == "b"']
    assert list(oldest([*required, "orchestry-marl[openai]"], ["openai"])) == [
        "numpy==2.0",
        "openai==2.54",
    ]
    with pytest.raises(ValueError, match="numpy<3: give it one lower bound"):
        list(oldest(["numpy<3"], []))


def test_every_dependency_has_a_lower_bound() -> None:
    extras = PROJECT["optional-dependencies"]
    released = [line for name, lines in extras.items() if name != "test" for line in lines]
    assert list(oldest([*PROJECT["dependencies"], *released], []))
