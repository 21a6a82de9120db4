"""The hook inside the real program: without a terminal, by policy, and with a user to ask."""

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import run_amplifier, succeed
from tests.support.plans import mock_plan, module_folder

pytestmark = pytest.mark.skipif(os.name != "posix", reason="needs a POSIX shell")

RULES = [
    {"action": "deny", "path": "kept/**", "reason": "it is kept"},
    {"action": "allow", "tool": "bash", "command": "touch *"},
]
CALLS = [
    ("bash", {"command": "touch by-rule"}),
    ("bash", {"command": "touch x; touch compound"}),
    ("write_file", {"path": "asked", "content": "x"}),
    ("write_file", {"path": "kept/forbidden", "content": "x"}),
    ("list_directory", {"path": "."}),
]


def plan(folder: Path, calls: list[tuple[str, dict[str, Any]]], **config: Any) -> Path:
    scripted = [
        {"name": name, "input": values, "id": f"c{n}"} for n, (name, values) in enumerate(calls)
    ]
    return mock_plan(
        folder,
        [{"tool_calls": scripted}, "done here"],
        tools=[{"module": "tool-filesystem"}, {"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval", "config": config}],
    )


def audit(home: Path) -> list[dict[str, Any]]:
    (file,) = home.rglob("sessions/**/approvals.jsonl")
    return [json.loads(line) for line in file.read_text().splitlines()]


@pytest.mark.parametrize(
    ("flags", "code", "denied", "made"),
    [
        ([], 8, ["c1", "c2", "c3"], {"by-rule"}),
        (["--approve", "allow"], 8, ["c3"], {"by-rule", "x", "compound", "asked"}),
        (["--approve", "ask"], 8, ["c1", "c2", "c3"], {"by-rule"}),
    ],
)
def test_without_a_terminal_the_policy_answers(
    tmp_path: Path, flags: list[str], code: int, denied: list[str], made: set[str]
) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    file = plan(tmp_path, CALLS, rules=RULES)
    done = run_amplifier("run", "-f", file, "go", "--output", "json", *flags, cwd=work, home=home)
    result = json.loads(done.stdout)
    assert (done.code, result["exit_code"]) == (code, code), done.stderr
    assert [tool["id"] for tool in result["denied"]] == denied
    assert {path.name for path in work.iterdir()} == made
    assert ("compound" in done.stderr) is ("c1" in denied)
    decisions = [record["decision"] for record in audit(home)]
    assert decisions == ["deny" if f"c{n}" in denied else "allow" for n in range(5)]


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="drives a pseudo-terminal")
def test_the_user_is_asked_and_always_is_remembered(tmp_path: Path) -> None:
    from tests.support.terminal import Terminal

    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    calls = [("bash", {"command": f"echo {n} >> made"}) for n in "112"]
    file = plan(tmp_path, calls)
    with Terminal("run", "-f", file, "go", cwd=work, home=home) as terminal:
        terminal.until(r"echo 1 >> made.*it redirects.*p yes to exactly this command.*[?] more")
        terminal.type("P")
        terminal.until(r"echo 2 >> made.*[?] more")
        terminal.type("n")
        terminal.until("done here")
        assert terminal.finish() == 8
    assert (work / "made").read_text() == "1\n1\n"
    assert [record["by"] for record in audit(home)] == [
        "answer (allow always)",
        "remembered (always)",
        "answer",
    ]
    succeed("run", "-f", plan(tmp_path, calls[:1]), "go", cwd=work, home=home)
    assert (work / "made").read_text() == "1\n1\n1\n"


def test_a_rule_of_a_plan_can_name_hosts(tmp_path: Path) -> None:
    rules = [
        {"action": "deny", "tool": "web_fetch", "host": "*.evil.example"},
        {"action": "allow", "host": ["docs.example", "*.docs.example"]},
    ]
    (tmp_path / "plan.yaml").write_text(yaml.safe_dump({"extends": "mock", "approvals": rules}))
    for url, code, by in (
        ("https://a.evil.example/x", 8, "plan.yaml:2"),
        ("https://v1.docs.example/", 0, "plan.yaml:5"),
        ("https://docs.example.org/", 8, ""),
    ):
        call = f"web_fetch: {url}"
        done = run_amplifier("policy", "test", "-f", "plan.yaml", call, cwd=tmp_path)
        assert (done.code, by in done.stdout + done.stderr) == (code, True), done.stdout


def test_a_call_that_its_tool_refuses_is_not_asked_about(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    refused = [
        ("write_file", {"path": "../outside", "content": "x"}),
        ("web_fetch", {"url": "http://localhost:8000/x"}),
        ("web_fetch", {"url": "http://[::1]/"}),
        ("web_fetch", {"url": "http://169.254.169.254/latest"}),
        ("web_fetch", {"url": "ftp://a.example/x"}),
        ("web_fetch", {"url": "https://other.example/"}),
        ("bash", {"command": "touch made; SHUTDOWN now"}),
        ("web_fetch", {"url": "https://evil.a.example/"}),
    ]
    asked = [
        ("web_fetch", {"url": "https://a.example/"}),
        ("web_fetch", {"url": "http://127.0.0.1:9/"}),
        ("bash", {"command": "touch made"}),
    ]
    file = plan(tmp_path, refused + asked)
    document = yaml.safe_load(file.read_text())
    document["tools"] = [
        {"module": "tool-filesystem"},
        {"module": "tool-bash", "config": {"denied_commands": ["shutdown"]}},
        {
            "module": "tool-web",
            "config": {
                "allowed_domains": ["a.example", "localhost", "127.0.0.1", "169.254.169.254"],
                "blocked_domains": ["evil"],
                "allow_hosts": ["127.0.0.1:9"],
            },
        },
    ]
    file.write_text(yaml.safe_dump(document))
    done = run_amplifier("run", "-f", file, "go", "--output", "json", cwd=work, home=home)
    denied = {call["id"]: call["reason"] for call in json.loads(done.stdout)["denied"]}
    # Also those that the tool refused by itself.
    assert list(denied) == [f"c{n}" for n in range(len(refused + asked))]
    assert [n for n in range(len(denied)) if "needs approval" in denied[f"c{n}"]] == [8, 9, 10]
    assert "an address of this machine" in denied["c1"]
    # The same reason has the same words, whatever the tool.
    of_config = "denied by {} in the tool's config ({!r})"
    assert of_config.format("denied_commands", "shutdown") in denied["c6"]
    assert of_config.format("blocked_domains", "evil") in denied["c7"]
    outside = r" is outside the (folders|domains) this tool may use: .*\(grant more with \w+ in the"
    assert all(re.search(outside, denied[call]) for call in ("c0", "c5")), denied


def test_a_call_that_cannot_succeed_is_not_asked_about(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    (work / "secrets").mkdir(parents=True)
    (work / "folder").mkdir()
    for name in ("parse.py", "secrets/key.txt"):
        (work / name).write_text("the first line\n")
    edit = {"old_string": "the first lime", "new_string": "x"}
    calls = [
        ("edit_file", {"path": "parse.py", **edit}),
        ("edit_file", {"path": "missing.py", **edit}),
        ("edit_file", {"path": "../outside.py", **edit}),
        ("write_file", {"path": "folder", "content": "x"}),
        # Its error would quote a file that may not be read.
        ("edit_file", {"path": "secrets/key.txt", **edit}),
        ("write_file", {"path": "new/made.py", "content": "the first lime"}),
        # It could succeed, after the call before.
        ("edit_file", {"path": "new/made.py", **edit}),
        ("bash", {"command": "touch another.py"}),
        ("edit_file", {"path": "another.py", **edit}),
    ]
    rules = [{"action": "deny", "tool": "read_file", "path": "secrets/**"}]
    file = plan(tmp_path, calls, rules=rules)
    done = run_amplifier("run", "-f", file, "go", "--output", "json", cwd=work, home=home)
    result = json.loads(done.stdout)
    asked = [call["id"] for call in result["denied"] if "needs approval" in str(call)]
    assert asked == ["c4", "c5", "c6", "c7", "c8"], result
    (transcript,) = home.rglob("transcript.jsonl")
    results = {
        message["tool_call_id"]: message["content"]
        for message in map(json.loads, transcript.read_text().splitlines())
        if message["role"] == "tool"
    }
    assert "old_string is not in the file" in results["c0"]
    assert "no such file" in results["c1"]
    assert "outside the folders this tool may use" in results["c2"]
    assert "it is a folder" in results["c3"]
    assert "first line" not in results["c4"]
    assert [record["decision"] for record in audit(home)][:4] == ["allow"] * 4


OTHER_EDIT = """
from pathlib import Path

from amplifier_core.models import ToolResult

__amplifier_module_type__ = "tool"


class Edit:
    name = "edit_file"
    description = "edits"
    input_schema = {"type": "object", "properties": {"path": {"type": "string"}}}

    async def execute(self, input):
        Path("changed").touch()
        return ToolResult(output="done")


async def mount(coordinator, config=None):
    await coordinator.mount("tools", Edit(), name="edit_file")
"""


def test_a_tool_that_replaces_another_is_asked_about(tmp_path: Path) -> None:
    source = module_folder(tmp_path, OTHER_EDIT, "amplifier_module_tool_edit")
    file = mock_plan(
        tmp_path,
        [{"tool_calls": [{"name": "edit_file", "input": {"path": "missing.py"}}]}, "done here"],
        tools=["tool-filesystem", {"module": "tool-edit", "source": str(source)}],
        hooks=["hooks-approval"],
    )
    assert run_amplifier("run", "-f", file, "go", cwd=tmp_path).code == 8
    assert not (tmp_path / "changed").exists()


def test_a_rule_does_not_follow_a_command_into_another_folder(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    (work / "evil").mkdir(parents=True)
    for folder in (work, work / "evil"):
        (folder / "build").write_text("#!/bin/sh\necho x >> ran\n")
        (folder / "build").chmod(0o755)
    calls = [
        ("bash", {"command": "./build"}),
        ("bash", {"command": "cd evil"}),
        ("bash", {"command": "./build"}),
    ]
    rules = [{"action": "allow", "tool": "bash", "command": ["./build", "git status"]}]
    scripted = [{"tool_calls": [{"name": name, "input": values}]} for name, values in calls]
    file = mock_plan(
        tmp_path,
        [*scripted, "done here"],
        tools=[{"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval", "config": {"rules": rules}}],
    )
    done = run_amplifier("run", "-f", file, "go", "--output", "json", cwd=work, home=home)
    assert done.code == 8, done.stderr
    assert f"it runs in {work / 'evil'}" in done.stderr
    assert (work / "ran").exists()
    assert not (work / "evil/ran").exists()


def test_everything_denied_by_the_default_ends_with_8(tmp_path: Path) -> None:
    home, work = tmp_path / "home", tmp_path / "work"
    work.mkdir()
    done = run_amplifier(
        "run", "-f", plan(tmp_path, CALLS[:3], default="deny"), "go", cwd=work, home=home
    )
    assert done.code == 8, done.stderr
    assert "no rule allowed a call of 'bash'" in done.stderr
    assert not list(work.iterdir())
