"""Rules for tool calls in the plan: testing, replaying and suggesting them."""

import asyncio
import json
import os
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.runtime.approvals import open_policy
from amplifier_app.sources.loading import load
from amplifier_core.testing import TestCoordinator
from amplifier_kit.policy.rules import SavedCall, describe_call, rules_for
from amplifier_modules.hooks_approval import mount
from tests.support import planted
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.plans import mock_plan

RULES: list[dict[str, Any]] = [
    {"action": "deny", "tool": "bash", "command": "rm *", "reason": "nothing is removed"},
    {"action": "allow", "tool": "bash", "command": ["make *", "git add *"]},
    {"action": "ask", "path": "docs/**"},
    {"action": "allow", "tool": "*_file", "path": ["src/**", "docs/x"]},
]
CALLS = [
    ("write_file", {"path": "src/a.py", "content": "1"}),
    ("bash", {"command": "touch 'x y'"}),
    ("bash", {"command": "git init -q ."}),
    ("bash", {"command": "git add src"}),
    ("bash", {"command": "git add ."}),
    ("bash", {"command": "ls"}),
    ("bash", {"command": "touch z && rm z"}),
]


GUARD = """\
case "$(cat)" in
  *'"file_path"'*.env'"'* | *'rm -rf'*) echo refused by the guard >&2; exit 2 ;;
esac
"""


def plan(folder: Path, rules: Any = RULES, **more: Any) -> Path:
    file = folder / "plan.yaml"
    lines = [f"  - {json.dumps(rule)}\n" for rule in rules]
    file.write_text(
        "extends: mock\napprovals:\n" + "".join(lines) + yaml.safe_dump(more) * bool(more)
    )
    return file


def policy(folder: Path, *arguments: str | Path) -> Finished:
    return run_amplifier("policy", *arguments, cwd=folder, home=folder / "home")


@pytest.fixture
def session(tmp_path: Path) -> str:
    scripted = [
        {"name": name, "input": values, "id": f"c{n}"} for n, (name, values) in enumerate(CALLS)
    ]
    file = mock_plan(
        tmp_path,
        [{"tool_calls": scripted}, "done"],
        tools=[{"module": "tool-filesystem"}, {"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval"}],
    )
    succeed(
        *("run", "-f", file, "--approve", "allow", "--session", "good", "go"),
        cwd=tmp_path,
        home=tmp_path / "home",
    )
    return "good"


@pytest.mark.parametrize(
    ("call", "code", "shown"),
    [
        (["bash: rm -rf build"], 8, ["deny", "plan.yaml:3", "nothing is removed"]),
        (["bash: make test"], 0, ["allow", "approvals rule 2 (plan.yaml:4)"]),
        (["bash: touch x"], 8, ["ask", "by     default"]),
        (["edit_file: docs/x"], 8, ["ask", "plan.yaml:5"]),
        (["write_file", '{"path": "src/deep/a"}'], 0, ["allow", "plan.yaml:6"]),
        (["edit_file: other", "--mode", "edits"], 0, ["allow", "by     mode edits"]),
    ],
)
def test_a_call_is_decided_with_its_rule(
    tmp_path: Path, call: list[str], code: int, shown: list[str]
) -> None:
    done = policy(tmp_path, "test", "-f", plan(tmp_path), *call)
    assert done.code == code, done.stderr
    for text in shown:
        assert text in done.stdout


@pytest.mark.parametrize(
    ("call", "denied"),
    [
        ("bash: sudo make", True),
        ("bash: make all", False),
        ("web_fetch: http://127.0.0.1/x", True),
        ("web_fetch: https://example.com", False),
    ],
)
def test_what_a_tool_refuses_itself_is_denied(tmp_path: Path, call: str, denied: bool) -> None:
    tools = [{"module": "tool-bash", "config": {"denied_commands": ["sudo"]}}]
    file = plan(tmp_path, [{"action": "allow", "tool": "*"}], tools=tools)
    tested = policy(tmp_path, "test", "-f", file, call)
    assert tested.code == (8 if denied else 0), tested.stderr
    assert tested.stdout.startswith("deny" if denied else "allow")
    at = "plan.yaml:5" if call.startswith("bash") else "default.yaml:"
    assert ("by     the tool itself (" in tested.stdout and at in tested.stdout) is denied


def test_rules_of_the_module_come_after_those_of_the_plan(tmp_path: Path) -> None:
    rules = [{"action": "deny", "command": "make *"}, {"action": "allow", "command": "tidy *"}]
    hooks = [{"module": "hooks-approval", "config": {"rules": rules}}]
    file = plan(tmp_path, hooks=hooks)
    for call, by in (("make x", "approvals rule 2"), ("tidy x", "rule 2")):
        done = policy(tmp_path, "test", f"bash: {call}", "-f", file, "--output", "json")
        facts = json.loads(done.stdout)
        assert (done.code, facts["by"]) == (0, by)
        assert facts["at"].startswith("plan.yaml:")


def test_the_nearest_document_decides(tmp_path: Path) -> None:
    plan(tmp_path)
    child = tmp_path / "child.yaml"
    child.write_text(
        "extends: ./plan.yaml\napprovals:\n  - {action: allow, tool: bash, command: rm x}\n"
    )
    assert policy(tmp_path, "test", "bash: rm x", "-f", child).code == 0
    assert policy(tmp_path, "test", "bash: rm y", "-f", child).code == 8


def test_an_invalid_rule_is_reported_at_its_line(tmp_path: Path) -> None:
    file = tmp_path / "plan.yaml"
    for rule, problem in (
        ("{action: alow}", "expected one of allow, ask, deny, sandboxed"),
        ("{tool: bash}", "'approvals.0' has no action"),
        ("{action: deny, path: ../x}", "must not contain '..'"),
        ("{action: deny, tool: ''}", "'approvals.0.tool' is empty"),
        ("{action: deny, command: []}", "'approvals.0.command' is empty"),
        ("{action: deny, comand: x}", "did you mean 'command'?"),
        ("deny", "expected a mapping such as"),
    ):
        file.write_text(f"extends: mock\napprovals:\n  - {rule}\n")
        with pytest.raises(PlanError) as refused:
            load(plan=str(file), environ={})
        [found] = refused.value.problems
        assert found.at.line == 3
        assert problem in f"{found.message} {found.hint}"
    done = policy(tmp_path, "test", "bash: ls", "-f", file)
    assert (done.code, "plan.yaml:3:" in done.stderr) == (78, True)


def test_rules_without_a_module_that_applies_them_are_refused(tmp_path: Path) -> None:
    file = mock_plan(tmp_path, ["hi"], approvals=RULES)
    done = run_amplifier("run", "-f", file, "go", home=tmp_path / "home")
    assert done.code == 78
    assert "no module applies the plan's approvals" in done.stderr
    checked = run_amplifier("plan", "check", "-f", file, home=tmp_path / "home")
    assert checked.code == 78
    assert "no module applies the plan's approvals" in checked.stderr


@pytest.mark.parametrize("call", [["nothing"], ["bash", "[1]"]])
def test_an_unreadable_call_is_a_usage_error(tmp_path: Path, call: list[str]) -> None:
    assert policy(tmp_path, "test", *call).code == 2


def test_saved_sessions_are_replayed(tmp_path: Path, session: str) -> None:
    file = plan(tmp_path)
    done = policy(tmp_path, "replay", "-f", file)
    assert done.stdout.startswith("would have denied 1 and asked about 2 of 7 calls:\n")
    assert "touch z && rm z" in done.stdout
    assert "touch 'x y'" not in done.stdout
    asked = policy(tmp_path, "replay", session, "-f", file, "--asks", "--output", "json")
    facts = json.loads(asked.stdout)
    assert [one["call"] for one in facts["listed"]] == [2, 3, 7]
    assert facts["listed"][2]["at"] == "plan.yaml:3"


def test_suggested_rules_allow_what_the_session_needed(tmp_path: Path, session: str) -> None:
    done = policy(tmp_path, "suggest", session)
    assert "no rule can allow: bash: touch z && rm z" in done.stderr
    rules = yaml.safe_load(done.stdout)["approvals"]
    assert rules == [
        {"action": "allow", "tool": "write_file", "path": "src/a.py"},
        {"action": "allow", "tool": "bash", "command": ["touch x?y", "git init -q .", "git add *"]},
    ]
    again = policy(tmp_path, "replay", "--asks", "-f", plan(tmp_path, rules))
    assert again.stdout.startswith("would have denied 0 and asked about 1 of 7 calls:")
    assert rules_for([]) == []


def test_denied_calls_get_no_rule_and_repeated_ones_are_named_once(tmp_path: Path) -> None:
    commands = ["touch x", *["touch y && touch z"] * 2]
    calls = [{"name": "bash", "input": {"command": command}} for command in commands]
    file = mock_plan(
        tmp_path,
        [{"tool_calls": calls}, "done"],
        tools=[{"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval"}],
    )
    run = "run", "-f", file, "--session", "twice", "go", "--approve"
    assert run_amplifier(*run, "deny", cwd=tmp_path, home=tmp_path / "home").code == 8
    assert policy(tmp_path, "suggest", "twice").stderr == "amplifier: no rules needed\n"
    # The ids of the calls are the same again.
    succeed(*run, "allow", cwd=tmp_path, home=tmp_path / "home")
    done = policy(tmp_path, "suggest", "twice")
    assert done.stdout.startswith("# For 1 call of session twice\n")
    assert done.stderr == "amplifier: no rule can allow: bash: touch y && touch z\n"


def test_a_wildcard_stands_for_a_secret(tmp_path: Path) -> None:
    token = planted.SECRETS["github-classic"]
    inputs = [
        ("bash", {"command": f"curl -H 'X: {token}' https://x.example"}),
        ("bash", {"command": f"login {token}"}),
        ("bash", {"command": "login -p [REDACTED:password]"}),
        ("write_file", {"path": f"keys/{token}.txt"}),
    ]
    calls = [
        SavedCall("s", number, tool, values, str(tmp_path), was_denied=False)
        for number, (tool, values) in enumerate(inputs, 1)
    ]
    assert rules_for(calls) == [
        {"action": "allow", "tool": "write_file", "path": "keys/*.txt"},
        {
            "action": "allow",
            "tool": "bash",
            "command": ["curl -H X:?* https://x.example", "login ?*", "login -p ?*"],
        },
    ]
    assert token not in describe_call(*inputs[0])


WORDS = [
    "git",
    "add",
    "status",
    "push",
    "rm",
    "-rf",
    "make",
    "ls",
    "x",
    "src/a",
    ";",
    "|",
    "$X",
    "'",
]
PATHS = ["src/a", "docs/x", "../x", "/etc/hosts", ".git/config", "x", "SRC/A", "src/../x", "a\0"]
calls = st.one_of(
    st.tuples(
        st.just("bash"),
        st.fixed_dictionaries(
            {"command": st.lists(st.sampled_from(WORDS), max_size=5).map(" ".join)},
            optional={"working_directory": st.sampled_from([".", "/", "src"])},
        ),
    ),
    st.tuples(
        st.sampled_from(["write_file", "edit_file", "read_file", "mcp_x", "task"]),
        st.fixed_dictionaries({"path": st.sampled_from(PATHS)}),
    ),
)


@given(
    batch=st.lists(calls, min_size=10, max_size=10),
    mode=st.sampled_from(["ask", "edits", "read-only", "auto"]),
)
def test_the_command_decides_like_the_hook(
    batch: list[tuple[str, dict[str, Any]]], mode: str
) -> None:
    asyncio.run(_compare(batch, mode))


async def _compare(batch: list[tuple[str, dict[str, Any]]], mode: str) -> None:
    chosen = _loaded()
    coordinator = TestCoordinator()
    coordinator.config["approvals"] = RULES
    coordinator.register_capability("session.working_dir", os.getcwd())
    asked: list[str] = []

    class Asked:
        async def request_approval(
            self, prompt: str, options: list[str], timeout: float, default: str
        ) -> str:
            asked.append(prompt)
            return "Deny"

    coordinator.approval_system = Asked()
    await mount(coordinator, {"mode": mode})
    async with open_policy(chosen) as decide:
        for tool, values in batch:
            before = len(asked)
            data = {"tool_name": tool, "tool_input": values, "input": values}
            result = await coordinator.hooks.emit("tool:pre", data)
            made = "ask" if len(asked) > before else "deny" if result.action == "deny" else "allow"
            assert decide(tool, values, mode=mode).action == made, (tool, values, mode)


_plans: list[ResolvedPlan] = []


def _loaded() -> ResolvedPlan:
    if not _plans:
        sets = [f"approvals={json.dumps(RULES)}"]
        _plans.append(load(profile="mock", sets=sets, environ={}))
    return _plans[0]


def test_files_of_namespaces_are_decided_on_like_in_a_session(tmp_path: Path) -> None:
    (tmp_path / "kit").mkdir()
    (tmp_path / "kit" / "a.md").touch()
    rules = [{"action": "deny", "path": "kit/**"}]
    plan(tmp_path, rules, namespaces={"kit": ["./kit", "./gone"]})
    done = policy(tmp_path, "test", "-f", "plan.yaml", "read_file: @kit:a.md")
    assert done.stdout.startswith("deny ")
    assert "files of @kit cannot be read" in done.stderr


def guarded_plan(folder: Path) -> Path:
    (folder / "guard.sh").write_text(GUARD)
    hook = {"type": "command", "command": f"sh '{folder}/guard.sh'"}
    config = {"claude": {"PreToolUse": [{"matcher": "Bash|Write|Edit|Read", "hooks": [hook]}]}}
    return plan(folder, hooks=[{"module": "hooks-shell", "config": config}])


@pytest.mark.parametrize(
    ("call", "claude", "codex"),
    [
        (["bash: rm -rf build"], "deny", "deny"),
        (["bash: ls"], "allow", "allow"),
        # The guard does not read patches.
        (["write_file", '{"file_path": "a/.env", "content": "x"}'], "deny", "allow"),
        (["glob", '{"pattern": "*"}'], None, None),
    ],
)
def test_guards_decide_on_a_call_in_the_formats_of_other_programs(
    tmp_path: Path, call: list[str], claude: str | None, codex: str | None
) -> None:
    file = guarded_plan(tmp_path)
    done = policy(tmp_path, "test", "-f", file, *call, "--as", "claude,codex", "--output", "json")
    rows = {row["program"]: row for row in json.loads(done.stdout)}
    assert (rows["claude"]["decision"], rows["codex"]["decision"]) == (claude, codex)
    assert done.code == (8 if "deny" in (claude, codex) else 0), done.stderr
    if claude == "deny":
        assert rows["claude"]["reason"] == "refused by the guard"


def test_guards_decide_on_the_calls_of_a_session(tmp_path: Path, session: str) -> None:
    options = ("--as", "claude,codex", "--session", session)
    done = policy(tmp_path, "test", "-f", guarded_plan(tmp_path), *options)
    assert done.code == 0, done.stderr
    assert len(done.stdout.splitlines()) == len(CALLS) + 2
    assert done.stdout.endswith(f"{len(CALLS)} decisions, 0 different\n")


@pytest.mark.parametrize(
    ("options", "code", "reported"),
    [
        (["bash: ls", "--as", "cursor"], 2, "unknown program 'cursor'"),
        ([], 2, "give either a call or --session"),
        (["--session", "good"], 2, "--session needs --as"),
        (["bash: ls", "--as", "claude"], 78, "has no hooks-shell"),
    ],
)
def test_invalid_requests_for_guards_are_reported(
    tmp_path: Path, options: list[str], code: int, reported: str
) -> None:
    done = policy(tmp_path, "test", "-f", plan(tmp_path), *options)
    assert done.code == code
    assert reported in done.stderr
