"""The recipes of `amplifier docs recipes`: their commands run as the schedulers would run them."""

import json
import os
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import amplifier_command, child_environment
from tests.support.plans import mock_plan
from tests.support.warm_program import warm_program

EXAMPLES = Path(__file__).parents[2] / "examples" / "batch"


class Machine:
    """A folder with a plan and rows, where shell commands run."""

    def __init__(self, folder: Path, rows: int) -> None:
        self.folder = folder
        mock_plan(folder, ["answer"])
        lines = (json.dumps({"id": f"r{n}", "prompt": f"row {n}"}) for n in range(rows))
        (folder / "rows.jsonl").write_text("\n".join(lines))
        self.programs = folder / "bin"
        self.programs.mkdir()

    def program(self, name: str, text: str) -> None:
        """Install a shell script."""
        file = self.programs / name
        file.write_text(f"#!/bin/sh\n{text}\n")
        file.chmod(0o755)

    def __call__(self, script: str, environment: Mapping[str, str]) -> str:
        env = child_environment(self.folder / "home", environment)
        env["PATH"] = f"{self.programs}{os.pathsep}{env['PATH']}"
        # As GitHub does; a plain `sh -c` is less strict.
        argv = ["bash", "--noprofile", "--norc", "-eo", "pipefail", "-c", script]
        done = subprocess.run(
            argv, cwd=self.folder, env=env, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
        return done.stderr

    def rows(self, batch: str) -> list[str]:
        """The rows that have ended in the folder of a batch."""
        lines = (self.folder / batch / "results.jsonl").read_text().splitlines()
        return sorted(json.loads(line)["row"] for line in lines)


@pytest.fixture
def cold_machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path, 8)
    (machine.programs / "amplifier").symlink_to(amplifier_command()[0])
    return machine


@pytest.fixture
def machine(tmp_path: Path) -> Iterator[Machine]:
    machine = Machine(tmp_path, 8)
    with warm_program(machine.programs):
        yield machine


def steps(job: dict[str, Any]) -> list[dict[str, Any]]:
    """The steps of a job that run amplifier."""
    found = [step for step in job["steps"] if "amplifier batch" in step.get("run", "")]
    assert found
    return found


def test_github_actions(machine: Machine) -> None:
    jobs = yaml.safe_load((EXAMPLES / "github-actions.yml").read_text())["jobs"]
    shards = jobs["shard"]["strategy"]["matrix"]["shard"]
    (machine.folder / "parts").mkdir()
    for shard in shards:
        (step,) = steps(jobs["shard"])
        assert step["env"]["SHARD"] == "${{ matrix.shard }}"
        machine(step["run"], {"SHARD": str(shard)})
        upload = jobs["shard"]["steps"][-1]["with"]
        assert upload["path"] == upload["name"] == "part-${{ matrix.shard }}"
        (machine.folder / f"part-{shard}").rename(machine.folder / "parts" / f"part-{shard}")
    (step,) = steps(jobs["merge"])
    machine(step["run"], {"GITHUB_STEP_SUMMARY": str(machine.folder / "summary.md")})
    assert machine.rows("all") == [f"r{n}" for n in range(8)]
    assert 'tests="8" failures="0"' in (machine.folder / "junit.xml").read_text()
    assert "8" in (machine.folder / "summary.md").read_text()


def test_kubernetes(machine: Machine) -> None:
    job = yaml.safe_load((EXAMPLES / "kubernetes.yaml").read_text())["spec"]
    (container,) = job["template"]["spec"]["containers"]
    (volume,) = container["volumeMounts"]
    assert (job["completionMode"], container["command"]) == ("Indexed", ["sh", "-c"])
    script = container["args"][0].replace(f"{volume['mountPath']}/part", f"{machine.folder}/part")
    for index in (0, job["completions"] - 1):
        machine(script, {"JOB_COMPLETION_INDEX": str(index)})
    assert (machine.rows("part-0"), machine.rows("part-3")) == (["r0", "r4"], ["r3", "r7"])
    # A pod that is replaced.
    machine(script, {"JOB_COMPLETION_INDEX": "0"})
    assert machine.rows("part-0") == ["r0", "r4"]


@pytest.mark.thorough
def test_slurm(cold_machine: Machine) -> None:
    cold_machine.program("srun", 'exec "$@"')
    script = str(EXAMPLES / "slurm.sh")
    assert "#SBATCH --array=0-3\n" in (EXAMPLES / "slurm.sh").read_text()
    cold_machine(script, {"SLURM_ARRAY_TASK_ID": "2"})
    assert cold_machine.rows("part-2") == ["r2", "r6"]
    # A job that is requeued.
    cold_machine(script, {"SLURM_ARRAY_TASK_ID": "2"})
    assert cold_machine.rows("part-2") == ["r2", "r6"]
