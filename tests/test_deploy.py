"""The recipes in deploy/: what SLURM starts, and a RayJob that KubeRay takes."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestry.core.machine import Launch
from orchestry.ext.sweep.settings import read_sweep
from tools.reference import commands

DEPLOY = Path(__file__).resolve().parent.parent / "deploy"
CRD = "ORCHESTRY_KUBERAY_CRD"
"""Path of KubeRay's ray.io_rayjobs.yaml."""
SRUN = """#!/bin/bash
# SLURM's srun, as far as the recipe relies on it: each process with its numbers.
while [[ $1 == -* ]]; do shift; done
for SLURM_PROCID in $(seq 0 $((SLURM_NTASKS - 1))); do
    SLURM_LOCALID=$((SLURM_PROCID % SLURM_NTASKS_PER_NODE))
    export SLURM_PROCID SLURM_LOCALID
    "$@"
done
"""
ORCHESTRY = f"""#!{sys.executable}
import os, sys
from orchestry.core.machine import launched
print(launched(), os.environ["MASTER_PORT"], *sys.argv[1:])
"""


def submitted(
    script: str, folder: Path, *args: str, **environ: str
) -> subprocess.CompletedProcess[str]:
    """What a batch script does with these programs and variables."""
    folder.mkdir(exist_ok=True)
    for name, text in {"srun": SRUN, "orchestry": ORCHESTRY}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return subprocess.run(
        ["bash", str(DEPLOY / script), *args],
        env=os.environ | {"PATH": f"{folder}:{os.environ['PATH']}"} | environ,
        capture_output=True,
        text=True,
    )


def job(nodes: int, each: int, tasks: int) -> dict[str, str]:
    """SLURM's variables."""
    return {
        "SLURM_JOB_ID": "123456",
        "SLURM_JOB_NUM_NODES": str(nodes),
        "SLURM_NTASKS_PER_NODE": str(each),
        "SLURM_NTASKS": str(tasks),
    }


@pytest.mark.slow
def test_slurms_processes_are_those_of_one_launch(tmp_path: Path) -> None:
    done = submitted("slurm_ranks.sbatch", tmp_path / "bin", "run", "--seed", "1", **job(2, 2, 4))
    launches = [Launch(4, rank, 2, rank % 2) for rank in range(4)]
    assert done.stdout.splitlines() == [f"{one} 23456 run --seed 1" for one in launches]


def test_processes_that_no_node_count_explains_are_refused(tmp_path: Path) -> None:
    done = submitted("slurm_ranks.sbatch", tmp_path / "bin", "run", **job(2, 2, 3))
    assert done.returncode == 2
    assert "3 processes on 2 nodes with 2 each: give --nodes and --ntasks-per-node" in done.stderr


@pytest.mark.parametrize("script", ["slurm.sbatch", "slurm_ranks.sbatch"])
def test_a_job_without_a_command_says_how_to_give_one(script: str, tmp_path: Path) -> None:
    done = submitted(script, tmp_path / "bin", **job(1, 2, 2))
    assert (done.returncode, done.stdout) == (2, "")
    assert f"sbatch deploy/{script} " in done.stderr


# --- KubeRay --------------------------------------------------------------------------------------


def documents() -> dict[str, Any]:
    """The file's objects by their kinds."""
    loaded = yaml.safe_load_all((DEPLOY / "kuberay.yaml").read_text(encoding="utf-8"))
    return {one["kind"]: one for one in loaded}


def pods(rayjob: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """The specs of all of a RayJob's pods."""
    cluster = rayjob["spec"]["rayClusterSpec"]
    return {
        "submitter": rayjob["spec"]["submitterPodTemplate"]["spec"],
        "head": cluster["headGroupSpec"]["template"]["spec"],
        **{group["groupName"]: group["template"]["spec"] for group in cluster["workerGroupSpecs"]},
    }


def test_all_pods_run_one_image_as_a_user_without_rights() -> None:
    found = pods(documents()["RayJob"])
    containers = [one for pod in found.values() for one in pod["containers"]]
    assert len({one["image"] for one in containers}) == 1
    for pod in found.values():
        assert pod["securityContext"]["runAsNonRoot"] is True
        assert pod["securityContext"]["runAsUser"] > 0
        assert pod["automountServiceAccountToken"] is False
    for one in containers:
        assert one["securityContext"] == {
            "allowPrivilegeEscalation": False,
            "readOnlyRootFilesystem": True,
            "capabilities": {"drop": ["ALL"]},
        }
        assert "/tmp" in {mount["mountPath"] for mount in one["volumeMounts"]}


def test_all_of_rays_pods_share_the_runs_and_get_the_key_from_a_secret() -> None:
    found = documents()
    claim = found["PersistentVolumeClaim"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    for name, pod in pods(found["RayJob"]).items():
        sources = {volume["name"]: volume for volume in pod["volumes"]}
        [container] = pod["containers"]
        mounts = {mount["mountPath"]: sources[mount["name"]] for mount in container["volumeMounts"]}
        if name == "submitter":  # it only asks the head
            assert "env" not in container
            assert [*mounts] == ["/tmp"]
            continue
        held = mounts["/orchestry/runs"]["persistentVolumeClaim"]["claimName"]
        assert held == claim["metadata"]["name"]
        assert [*container["env"][0]["valueFrom"]] == ["secretKeyRef"]
    assert found["RayJob"]["spec"]["rayClusterSpec"]["authOptions"] == {"mode": "token"}


def test_the_job_is_a_sweep_that_can_be_read(tmp_path: Path) -> None:
    found = documents()
    words = shlex.split(found["RayJob"]["spec"]["entrypoint"])
    path = tmp_path / Path(words[words.index("--config") + 1]).name
    path.write_text(found["ConfigMap"]["data"][path.name], encoding="utf-8")
    assert read_sweep(path, {}).budget_usd is not None


def test_the_jobs_command_can_be_typed() -> None:
    words = documents()["RayJob"]["spec"]["entrypoint"].split()
    [sweep] = [one for one, context in commands() if context.command_path == " ".join(words[:2])]
    known = {option for param in sweep.params for option in param.opts}
    assert {word for word in words if word.startswith("--")} <= known


def closed(schema: Any) -> Any:
    """The schema, with unknown fields refused as `kubectl apply` does."""
    if isinstance(schema, list):
        return [closed(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {name: closed(one) for name, one in schema.items()}
    if isinstance(made.get("properties"), dict) and made.get("type") == "object":
        made.setdefault("additionalProperties", False)
    return made


@pytest.mark.skipif(CRD not in os.environ, reason=f"{CRD} names no file of KubeRay's")
@pytest.mark.parametrize("wrong", [{}, {"entrypoint": 1}, {"rayVersions": "2.60.0"}])
def test_kuberays_schema_takes_the_job_and_nothing_else(wrong: dict[str, Any]) -> None:
    from jsonschema import Draft202012Validator

    text = Path(os.environ[CRD]).read_text(encoding="utf-8")
    crd = yaml.load(text, Loader=getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # of 25,000 lines
    versions = {one["name"]: one["schema"] for one in crd["spec"]["versions"]}
    rayjob = documents()["RayJob"]
    schema = closed(versions[rayjob["apiVersion"].partition("/")[2]]["openAPIV3Schema"])
    schema["properties"]["metadata"] = {"type": "object"}
    found = [*Draft202012Validator(schema).iter_errors({**rayjob, "spec": rayjob["spec"] | wrong})]
    assert len(found) == len(wrong)
