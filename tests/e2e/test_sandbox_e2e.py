"""The sandbox in runs of the program: who gets it, who may change it, and that it fails closed."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_support.sandbox import available
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.conditions import Conditions

pytestmark = pytest.mark.skipif(
    not (sys.platform.startswith("linux") and available.kernel_layer().works),
    reason="the kernel layer does not work here",
)

NAMESPACES = {"level": "namespaces"}
WITHOUT_NAMESPACES = Conditions(namespaces=False)
MISSING = "user namespaces are switched off: user.max_user_namespaces is 0"


class Project:
    """A folder to work in, on a machine without namespaces."""

    def __init__(self, place: Path) -> None:
        self.place = place
        self.work = place / "work"
        self.work.mkdir()
        self.env = {"TMPDIR": str(place)}

    def run(
        self,
        commands: list[str],
        *options: str,
        sandbox: Any = None,
        tools: list[Any] | None = None,
        **plan: Any,
    ) -> Finished:
        calls = [{"name": "bash", "input": {"command": command}} for command in commands]
        replies: list[Any] = [{"tool_calls": calls}, "done"] if calls else ["done"]
        document: dict[str, Any] = {
            "session": {"orchestrator": "loop-basic", "context": "context-simple"},
            "providers": [{"module": "provider-mock", "config": {"replies": replies}}],
            "tools": [{"module": "tool-bash"}] if tools is None else tools,
            **plan,
        }
        if sandbox is not None:
            document["session"]["sandbox"] = sandbox
        file = self.place / "plan.yaml"
        file.write_text(yaml.safe_dump(document))
        arguments = ("run", "-f", file, "--approve", "allow", "--output", "json", *options, "go")
        return run_amplifier(
            *arguments,
            cwd=self.work,
            home=self.place / "home",
            env=self.env,
            conditions=WITHOUT_NAMESPACES,
        )


def to_result(done: Finished) -> dict[str, Any]:
    return json.loads(done.stdout)


@pytest.fixture
def project(tmp_path: Path) -> Project:
    return Project(tmp_path)


def test_commands_are_restricted_by_default_and_the_result_says_by_what(project: Project) -> None:
    outside = project.place / "outside"
    done = project.run([f"touch inside; touch {outside}"])
    assert done.code == 0, done.stderr
    assert sorted(os.listdir(project.work)) == ["inside"]
    assert not outside.exists()
    said = to_result(done)["sandbox"]
    assert said["policy"]["network"] == "none"
    assert (said["enforced"], said["missing"]) == ("kernel", None)
    # Nothing of it is left, and the program's own folder is out of reach.
    assert [path.name for path in project.place.glob("amplifier-*")] == []
    spy = project.run([f"cat {project.place}/home/sessions/*/metadata.json > found"])
    assert (project.work / "found").read_text() == "", spy.stdout


def test_the_user_decides_for_one_run(project: Project) -> None:
    outside = project.place / "outside"
    done = project.run([f"touch {outside}"], "--sandbox", "off")
    assert to_result(done)["sandbox"] == {"policy": None, "enforced": None, "missing": None}
    assert outside.exists()
    project.run(["touch inside"], "--sandbox", "read-only")
    assert os.listdir(project.work) == []
    (project.place / "more").mkdir()
    project.run(["touch ../more/made"], "--sandbox", "{write: [../more]}")
    assert (project.place / "more" / "made").exists()
    wrong = project.run([], "--sandbox", "none")
    assert wrong.code == 2
    assert (
        "--sandbox: 'none' is not a sandbox policy; expected off, read-only, workspace"
        in wrong.stderr
    )
    broken = project.run([], "--sandbox", "{write: [")
    assert broken.code == 2
    assert "--sandbox '{write: [' is not valid YAML" in broken.stderr


HOOK = {"module": "hooks-shell", "config": {"hooks": [{"event": "tool:pre", "command": "true"}]}}
SERVER = {"command": "cat", "required": True}


@pytest.mark.parametrize(
    "plan",
    [
        {"sandbox": NAMESPACES},
        {"sandbox": NAMESPACES, "tools": [], "hooks": [HOOK]},
        {"sandbox": NAMESPACES, "tools": [], "checks": ["true"]},
        {"tools": [{"module": "tool-bash", "config": {"sandbox": NAMESPACES}}]},
        {
            "sandbox": NAMESPACES,
            "tools": [{"module": "tool-mcp", "config": {"servers": {"it": SERVER}}}],
        },
    ],
    ids=["session", "hook", "check", "entry", "server"],
)
def test_what_cannot_be_enforced_ends_the_run_before_the_first_request(
    project: Project, plan: dict[str, Any]
) -> None:
    done = project.run([], **plan)
    assert done.code == 78, done.stderr
    assert to_result(done)["steps"] == 0
    error = to_result(done)["error"]
    assert error["message"] == (f"the sandbox for commands is unavailable: {MISSING}")
    assert "--sandbox off" in error["hint"]


def test_a_sandbox_that_no_module_uses_is_reported(project: Project) -> None:
    module = project.place / "tool-other"
    module.mkdir()
    (module / "__init__.py").write_text("async def mount(coordinator, config=None):\n    pass\n")
    tools = [{"module": "tool-other", "source": str(module)}]
    said = "no module uses the sandbox: programs that tool-other may start run with your rights"
    assert said in project.run([], sandbox="workspace", tools=tools).stderr
    assert "sandbox" not in project.run([], tools=tools).stderr


def test_a_rule_of_the_plan_allows_commands_in_the_sandbox_only(project: Project) -> None:
    hooks = [{"module": "hooks-approval"}]
    rules = [{"action": "sandboxed", "tool": "bash"}]
    for sandbox, made in (("off", []), ("workspace", ["made"])):
        done = project.run(
            ["touch made; touch made"],
            "--sandbox",
            sandbox,
            "--approve",
            "deny",
            approvals=rules,
            hooks=hooks,
        )
        assert os.listdir(project.work) == made, done.stderr


def test_a_plan_may_go_without_or_start_no_commands(project: Project) -> None:
    done = project.run(["touch made"], sandbox={**NAMESPACES, "unavailable": "warn"})
    assert (done.code, os.listdir(project.work)) == (0, ["made"]), done.stderr
    assert f"commands run without a sandbox: {MISSING}" in done.stderr
    said = to_result(done)["sandbox"]
    assert (said["enforced"], said["missing"]) == (None, MISSING)
    assert project.run([], sandbox=NAMESPACES, tools=[]).code == 0


def test_an_entry_may_have_a_policy_of_its_own(project: Project) -> None:
    (project.place / "more").mkdir()
    tools = [{"module": "tool-bash", "config": {"sandbox": {"write": ["../more"]}}}]
    done = project.run(["touch ../more/made; touch made"], sandbox="read-only", tools=tools)
    assert done.code == 0, done.stderr
    assert (os.listdir(project.work), os.listdir(project.place / "more")) == ([], ["made"])


def test_sub_agents_get_no_more_than_their_session(project: Project) -> None:
    def attempt(session: Any, agent: Any) -> list[str]:
        task = {"name": "task", "input": {"agent": "helper", "instruction": "touch it"}}
        touch = {"name": "bash", "input": {"command": "touch made"}}
        mock = {"module": "provider-mock", "config": {"replies": [{"tool_calls": [touch]}, "done"]}}
        project.run(
            [],
            sandbox=session,
            providers=[
                {"module": "provider-mock", "config": {"replies": [{"tool_calls": [task]}, "done"]}}
            ],
            tools=[{"module": "tool-task"}, {"module": "tool-bash"}],
            agents={
                "helper": {
                    "description": "Helps.",
                    "session": {"sandbox": agent},
                    "providers": [mock],
                }
            },
        )
        made = os.listdir(project.work)
        for name in made:
            (project.work / name).unlink()
        return made

    assert attempt("workspace", "workspace") == ["made"]
    assert attempt("workspace", "read-only") == []
    assert attempt("read-only", "off") == []


def test_settings_set_it_and_an_untrusted_project_does_not(project: Project) -> None:
    outside = project.place / "outside"
    folder = project.work / ".amplifier"
    folder.mkdir()
    loose = json.dumps({"session": {"sandbox": "off"}})
    (folder / "settings.yaml").write_text(loose)
    call = {"name": "bash", "input": {"command": f"touch {outside}"}}
    mock = {"module": "provider-mock", "config": {"replies": [{"tool_calls": [call]}, "done"]}}
    home = project.place / "home"
    home.mkdir(exist_ok=True)

    def attempt(*options: str) -> bool:
        outside.unlink(missing_ok=True)
        succeed(
            *("run", "--approve", "allow", "-p", "mock", *options, "go"),
            cwd=project.work, home=home, env=project.env, conditions=WITHOUT_NAMESPACES,
        )  # fmt: skip
        return outside.exists()

    settings = {"providers": [mock]}
    (home / "settings.yaml").write_text(json.dumps(settings))
    assert not attempt("--no-project")
    assert attempt("--trust")
    (home / "settings.yaml").write_text(json.dumps({**settings, "session": {"sandbox": "off"}}))
    assert attempt("--no-project")


def test_plan_check_reports_what_is_enforced(project: Project) -> None:
    document: dict[str, Any] = {
        "extends": "default",
        "providers": [{"module": "provider-mock"}],
        "session": {"sandbox": {"write": [".", "build"]}},
    }
    (project.work / "plan.yaml").write_text(json.dumps(document))
    checked = ("plan", "check", "-f", "plan.yaml")
    found = run_amplifier(
        *checked, cwd=project.work, env=project.env, conditions=WITHOUT_NAMESPACES
    )
    assert (
        "write: ., build; read: host; network: none; level: kernel; enforced by Landlock"
        in found.stderr
    )
    assert "not covered: commands can write to .git, .amplifier, .vscode" in found.stderr
    document["session"] = {"sandbox": NAMESPACES}
    (project.work / "plan.yaml").write_text(json.dumps(document))
    lacking = run_amplifier(
        *checked, cwd=project.work, env=project.env, conditions=WITHOUT_NAMESPACES
    )
    assert lacking.code == 78
    assert "the sandbox for commands is unavailable: user namespaces are" in lacking.stderr
    assert "plan has 1 problem" in lacking.stderr
    assert "broken: its sandbox is unavailable" in lacking.stdout


def test_doctor_says_what_missing_namespaces_mean(project: Project) -> None:
    inside = project.work / "state"
    inside.mkdir()
    done = run_amplifier("doctor", cwd=project.work, home=inside, conditions=WITHOUT_NAMESPACES)
    said = " ".join(f"{done.stdout} {done.stderr}".split())
    assert f"no namespaces: {MISSING}; so commands can write to .git, .amplifier, .vscode" in said
    assert "and change mode, owner and times of your files anywhere" in said
    closed = f"commands can create and remove nothing directly in {str(project.work)!r}, because"
    assert f"{closed} they must not reach {str(inside)!r}" in said
