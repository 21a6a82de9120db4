"""Hooks written for Claude Code and Codex, in a real run: they refuse, change and add what they did there."""

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from amplifier_modules.hooks_shell.foreign import Format, to_foreign, to_own
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.module_repositories import write_files
from tests.support.plugins import write_plugin

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="looks into /proc")

RM_GUARD = r"""
import json, re, sys
call = json.load(sys.stdin)
assert call["hook_event_name"] == "PreToolUse" and call["permission_mode"]
if call["tool_name"] != "Bash":
    sys.exit(0)
if re.search(r"\brm\s+-rf\b", call["tool_input"]["command"]):
    print("rm -rf is not allowed in " + call["cwd"], file=sys.stderr)
    sys.exit(2)
"""
PROTECTED_FILES = r"""
import json, re, sys
call = json.load(sys.stdin)
name, given = call["tool_name"], call["tool_input"]
if name == "apply_patch":
    paths = re.findall(r"^\*\*\* (?:Add|Update|Delete) File: (.*)$", given["command"], re.M)
else:
    paths = [given["file_path"]]
for path in paths:
    if path.endswith(".env"):
        print(json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse",
              "permissionDecision": "deny", "permissionDecisionReason": f"{path} is protected"}}))
"""
SECRET_SCANNER = r"""
import json, sys
given = json.load(sys.stdin)["tool_input"]
text = given.get("content") or given.get("new_string") or given.get("command") or ""
print(json.dumps({"decision": "block", "reason": "it has a key"}) if "KEY=" in text else "")
"""
PUSH_GUARD = r"""
read -r line
case $line in *"git push"*) echo '{"continue": false, "stopReason": "nobody pushes from here"}' ;; esac
"""
REWRITE = r"""
import json, sys
given = json.load(sys.stdin)["tool_input"]
given["command"] = given["command"].replace("old.txt", "new.txt")
print(json.dumps({"hookSpecificOutput": {"hookEventName": "PreToolUse", "permissionDecision": "allow",
      "updatedInput": given, "additionalContext": "old.txt has become new.txt"}}))
"""
ADD_CONTEXT = r"""
import json, sys
assert json.load(sys.stdin)["prompt"] == "go"
print("The branch is main.")
"""
STOP = """
import json, os, sys
given = json.load(sys.stdin)
with open("asked.jsonl", "a") as file:
    print(json.dumps(given["stop_hook_active"]), file=file)
if not os.path.exists("done.txt"):
    print("write done.txt first", file=sys.stderr)
    sys.exit(2)
"""
FILES = {
    "stop.py": STOP,
    "rm.py": RM_GUARD,
    "protected.py": PROTECTED_FILES,
    "secrets.py": SECRET_SCANNER,
    "push.sh": PUSH_GUARD,
    "rewrite.py": REWRITE,
    "context.py": ADD_CONTEXT,
}


def matcher(pattern: str | None, file: str, **more: Any) -> dict[str, Any]:
    program = "sh" if file.endswith(".sh") else sys.executable
    hook = {"type": "command", "command": f"{program} $CLAUDE_PROJECT_DIR/{file}", **more}
    return {"hooks": [hook]} if pattern is None else {"matcher": pattern, "hooks": [hook]}


def run(
    folder: Path,
    setting: str,
    hooks: Any,
    *calls: ToolCall,
    script: Sequence[Reply | str] = (),
    options: Sequence[str] = (),
) -> tuple[Finished, list[dict[str, Any]]]:
    """Run a prompt with this setting of hooks-shell; return it and the bodies of its requests."""
    work = write_files(folder / "work", FILES)
    plan = {
        "extends": "default",
        "providers": [{"module": "provider-anthropic", "config": {"priority": 1}}],
        "hooks": [{"module": "hooks-shell", "config": {setting: hooks}}],
    }
    (folder / "plan.yaml").write_text(json.dumps(plan))
    usual = [Reply(tool_calls=list(calls)), "done"] if calls else ["done"]
    with ScriptedLLM.running([*(script or usual)]) as server:
        done = run_amplifier(
            *("run", "-f", folder / "plan.yaml", "go", "--approve", "allow", *options),
            cwd=work,
            env={"ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": server.base_url},
        )
        return done, [request.body for request in server.completions]


def results(bodies: list[dict[str, Any]]) -> list[str]:
    blocks = bodies[-1]["messages"][-1]["content"]
    return [json.dumps(block) for block in blocks if block["type"] == "tool_result"]


@pytest.mark.parametrize("form", ["claude", "codex"])
def test_guards_refuse_the_same_calls(tmp_path: Path, form: Format) -> None:
    writes = "apply_patch|Edit|Write" if form == "codex" else "Edit|MultiEdit|Write"
    hooks = {
        "PreToolUse": [
            matcher("Bash", "rm.py"),
            matcher(writes, "protected.py"),
            matcher("", "secrets.py"),
            matcher("*", "push.sh"),
        ]
    }
    done, bodies = run(
        tmp_path,
        form,
        hooks,
        ToolCall("bash", {"command": "rm -rf build"}),
        ToolCall("write_file", {"file_path": "a.env", "content": "x\n"}),
        ToolCall("write_file", {"file_path": "a.txt", "content": "KEY=1\n"}),
        ToolCall("bash", {"command": "git push"}),
        ToolCall("bash", {"command": "touch fine"}),
        ToolCall("write_file", {"file_path": "b.txt", "content": "x\n"}),
    )
    assert done.code in (0, 8), done.stderr
    rm, env, key, push, touch, write = results(bodies)
    assert f"rm -rf is not allowed in {tmp_path / 'work'}" in rm
    assert "a.env is protected" in env
    assert "it has a key" in key
    assert "nobody pushes from here" in push
    assert "denied" not in touch + write
    made = {path.name for path in (tmp_path / "work").iterdir()}
    assert {"fine", "b.txt"} <= made
    assert not {"a.env", "a.txt"} & made


def test_a_call_is_changed_with_a_text_for_the_model_and_still_subject_to_the_rules(
    tmp_path: Path,
) -> None:
    hooks = {"PreToolUse": [matcher("Bash", "rewrite.py")]}
    calls = [ToolCall("bash", {"command": f"touch {name}old.txt"}) for name in "ab"]
    done, bodies = run(tmp_path, "claude", hooks, *calls)
    assert done.code == 0, done.stderr
    made = {path.name for path in (tmp_path / "work").iterdir()}
    assert made.issuperset(["anew.txt", "bnew.txt"])
    assert not made.intersection(["aold.txt", "bold.txt"])
    assert json.dumps(bodies[1]).count("old.txt has become new.txt") == 2


def test_output_on_a_prompt_is_for_the_model(tmp_path: Path) -> None:
    done, bodies = run(tmp_path, "claude", {"UserPromptSubmit": [matcher(None, "context.py")]})
    assert done.stdout == "done\n", done.stderr
    assert "The branch is main." in json.dumps(bodies[0]["messages"])


def test_a_guard_that_fails_refuses(tmp_path: Path) -> None:
    commands = {
        "Bash": "exit 7",
        "Write": 'echo \'{"hookSpecificOutput": [{"permissionDecision": "deny"}]}\'',
    }
    hooks = {
        "PreToolUse": [
            {"matcher": tool, "hooks": [{"type": "command", "command": command}]}
            for tool, command in commands.items()
        ]
    }
    write = ToolCall("write_file", {"file_path": "made", "content": "x"})
    done, bodies = run(
        tmp_path, "claude", hooks, ToolCall("bash", {"command": "touch made"}), write
    )
    for result in results(bodies):
        assert "which must allow it, failed" in result
    assert not (tmp_path / "work/made").exists()
    assert done.code == 8


def test_matchers_are_names_or_searched_for_in_the_name(tmp_path: Path) -> None:
    runs = ("Bash", "Read|Bash", "^Ba", ".*as", "ash$", "[B]as")
    others = ("Bas", "ash|Read", "^ash", "bash", "mcp__.*")
    hooks = {
        "PreToolUse": [
            {"matcher": pattern, "hooks": [{"type": "command", "command": f"touch ran-{number}"}]}
            for number, pattern in enumerate((*runs, *others))
        ]
    }
    done, _ = run(tmp_path, "claude", hooks, ToolCall("bash", {"command": "true"}))
    assert done.code == 0, done.stderr
    ran = {path.name for path in (tmp_path / "work").glob("ran-*")}
    assert ran == {f"ran-{number}" for number in range(len(runs))}


def test_a_question_about_a_changed_call_is_refused(tmp_path: Path) -> None:
    answer = {"permissionDecision": "ask", "updatedInput": {"command": "touch safe"}}
    command = f"echo '{json.dumps({'hookSpecificOutput': answer})}'"
    hooks = {"PreToolUse": [{"hooks": [{"type": "command", "command": command}]}]}
    done, bodies = run(tmp_path, "claude", hooks, ToolCall("bash", {"command": "touch made"}))
    assert "asks about a call that it changes" in results(bodies)[0]
    assert not (tmp_path / "work/made").exists()
    assert done.code == 8


def test_what_cannot_be_used_is_named(tmp_path: Path) -> None:
    hooks = {
        "PreToolUse": [
            {"hooks": [{"type": "prompt", "prompt": "x"}]},
            {"matcher": "(", "hooks": []},
        ],
        "Nothing": [],
    }
    done, _ = run(tmp_path, "claude", hooks)
    assert done.stdout == "done\n", done.stderr
    for text in ("only hooks with a command", "not a regular expression", "no such event"):
        assert text in done.stderr


@pytest.mark.parametrize("form", ["claude", "codex"])
def test_an_agent_goes_on_until_its_stop_hook_lets_it_end(tmp_path: Path, form: Format) -> None:
    hooks = {"Stop": [matcher(None, "stop.py")]}
    write = ToolCall("write_file", {"file_path": "done.txt", "content": "x\n"})
    script = ["first", Reply(tool_calls=[write]), "second"]
    done, bodies = run(tmp_path, form, hooks, script=script)
    assert (done.code, done.stdout) == (0, "second\n"), done.stderr
    assert len(bodies) == 3
    assert "write done.txt first" in json.dumps(bodies[1]["messages"][-1])
    asked = (tmp_path / "work/asked.jsonl").read_text().split()
    assert asked == ["false", "true"]


def test_a_stop_hook_cannot_lead_beyond_the_limits(tmp_path: Path) -> None:
    hooks = {"Stop": [matcher(None, "stop.py")]}
    limit = ("--max-steps", "3")
    done, bodies = run(tmp_path, "claude", hooks, script=["still not"] * 5, options=limit)
    assert len(bodies) == 3, done.stderr
    assert done.code == 0


@pytest.mark.parametrize(
    "answer",
    [
        {"continue": False, "stopReason": "enough"},
        {"hookSpecificOutput": {"hookEventName": "Stop", "additionalContext": "a remark"}},
    ],
)
def test_only_a_stop_hook_that_blocks_makes_the_agent_go_on(
    tmp_path: Path, answer: dict[str, Any]
) -> None:
    command = f"echo '{json.dumps(answer)}'"
    hooks = {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}
    done, bodies = run(tmp_path, "claude", hooks, script=["done", "never"])
    assert (done.code, done.stdout, len(bodies)) == (0, "done\n", 1), done.stderr


@pytest.mark.parametrize(("limit", "requests"), [(100, 1), (10_000, 2)])
def test_what_a_stop_hook_says_is_shown_and_subject_to_the_limits_for_hooks(
    tmp_path: Path, limit: int, requests: int
) -> None:
    answer = {"decision": "block", "reason": "x" * 5000, "systemMessage": "not yet"}
    command = f"test -e said || echo '{json.dumps(answer)}'; touch said"
    hooks = {"Stop": [{"hooks": [{"type": "command", "command": command}]}]}
    options = ("--set", f"session.injection_size_limit={limit}")
    done, bodies = run(tmp_path, "claude", hooks, script=["done", "done"], options=options)
    assert (done.stdout, len(bodies)) == ("done\n", requests), done.stderr
    expected = "not yet" if requests == 2 else "Context injection exceeds 100 characters"
    assert expected in done.stderr


def test_a_stop_hook_does_not_run_for_sub_agents(tmp_path: Path) -> None:
    hooks = {"Stop": [matcher(None, "stop.py")]}
    task = ToolCall("task", {"agent": "explorer", "instruction": "look"})
    write = ToolCall("write_file", {"file_path": "done.txt", "content": "x\n"})
    script = [Reply(tool_calls=[task]), "of the agent", Reply(tool_calls=[write]), "done"]
    done, _ = run(tmp_path, "claude", hooks, script=script)
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    assert (tmp_path / "work/asked.jsonl").read_text().split() == ["false"]


@pytest.mark.parametrize(
    ("program", "file"), [("claude", ".claude/settings.json"), ("codex", ".codex/hooks.json")]
)
def test_hooks_of_a_project_run_only_as_they_were_trusted(
    tmp_path: Path, program: str, file: str
) -> None:
    work = tmp_path / "work"
    hooks = {"PreToolUse": [matcher("Bash", "rm.py")]}
    write_files(work, {file: json.dumps({"hooks": hooks}), ".git/HEAD": ""})
    call = ToolCall("bash", {"command": "rm -rf build"})

    done, bodies = run(tmp_path, "import", [program], call)
    assert f"the hooks in {work / file} do not run: the project is not trusted" in done.stderr
    assert "not allowed" not in results(bodies)[0]

    shown = run_amplifier("trust", "--yes", cwd=work)
    assert file in shown.stdout
    _, bodies = run(tmp_path, "import", [program], call)
    assert "rm -rf is not allowed" in results(bodies)[0]

    hooks["PreToolUse"].append(matcher("Bash", "push.sh"))
    (work / file).write_text(json.dumps({"hooks": hooks}))
    done, bodies = run(tmp_path, "import", [program], call)
    assert done.code == 78, done.stderr
    assert "has changed since it was trusted" in done.stderr
    assert not bodies


@pytest.mark.parametrize(
    ("text", "code", "said"),
    [
        ("{", 78, "not valid JSON"),
        ('{"hooks": []}', 78, "is not a JSON object"),
        ('{"disableAllHooks": true, "hooks": {"PreToolUse": [{"hooks": [{"command": "exit 2"}]}]}}', 0, ""),
        ('{"permissions": {"allow": ["Bash"]}}', 0, ""),
    ],
)  # fmt: skip
def test_settings_of_a_project_are_read_with_care(
    tmp_path: Path, text: str, code: int, said: str
) -> None:
    work = write_files(tmp_path / "work", {".claude/settings.json": text, "AGENTS.md": "Be kind."})
    succeed("trust", "--yes", cwd=work)
    call = ToolCall("bash", {"command": "touch made"})
    done, _ = run(tmp_path, "import", ["claude", "codex"], call)
    assert done.code == code, done.stderr
    assert said in done.stderr
    assert (work / "made").exists() == (code == 0)


def test_hooks_of_a_plugin_find_their_files(tmp_path: Path) -> None:
    command = f"{sys.executable} ${{CLAUDE_PLUGIN_ROOT}}/guard.py"
    folder = write_plugin(tmp_path / "review")
    hook = {"matcher": "Bash", "hooks": [{"type": "command", "command": command}]}
    write_files(
        folder,
        {"guard.py": RM_GUARD, "hooks/hooks.json": json.dumps({"hooks": {"PreToolUse": [hook]}})},
    )
    plan = {
        "extends": "default",
        "plugins": [{"source": str(folder), "only": ["hooks"]}],
        "providers": [{"module": "provider-anthropic", "config": {"priority": 1}}],
    }
    (tmp_path / "plan.yaml").write_text(json.dumps(plan))
    (tmp_path / "work").mkdir()
    script = [Reply(tool_calls=[ToolCall("bash", {"command": "rm -rf /nothing"})]), "done"]
    with ScriptedLLM.running(script) as server:
        run_amplifier(
            *("run", "-f", tmp_path / "plan.yaml", "go", "--approve", "allow"),
            cwd=tmp_path / "work",
            env={"ANTHROPIC_API_KEY": "sk-test", "ANTHROPIC_BASE_URL": server.base_url},
        )
        assert "rm -rf is not allowed" in results([r.body for r in server.completions])[0]


@pytest.mark.parametrize(
    ("tool", "values", "name", "theirs"),
    [
        ("bash", {"command": "ls"}, "Bash", {"command": "ls"}),
        ("bash", {"command": "ls", "timeout": 2}, "Bash", {"command": "ls", "timeout": 2000}),
        ("read_file", {"file_path": "/a"}, "Read", {"file_path": "/a"}),
        (
            "edit_file",
            {"file_path": "/a", "edits": []},
            "MultiEdit",
            {"file_path": "/a", "edits": []},
        ),
        ("grep", {"pattern": "a", "ignore_case": True}, "Grep", {"pattern": "a", "-i": True}),
        ("task", {"agent": "a", "instruction": "b"}, "Task", {"subagent_type": "a", "prompt": "b"}),
        ("mcp_github_get_issue", {"n": 1}, "mcp__github__get_issue", {"n": 1}),
        ("own_tool", {"x": 1}, "own_tool", {"x": 1}),
    ],
)
def test_tools_and_inputs_are_mapped_both_ways(
    tool: str, values: dict[str, Any], name: str, theirs: dict[str, Any]
) -> None:
    assert to_foreign(tool, values, "claude", "/somewhere") == (name, theirs)
    assert to_own(tool, theirs) == values


def test_paths_are_absolute_for_claude() -> None:
    assert to_foreign("read_file", {"file_path": "a"}, "claude", "/somewhere")[1] == {
        "file_path": "/somewhere/a"
    }


def test_an_edit_is_a_patch_for_codex() -> None:
    edit = {"file_path": "a.py", "old_string": "x = 1\ny", "new_string": "x = 2"}
    assert to_foreign("edit_file", edit, "codex", "/somewhere") == (
        "apply_patch",
        {
            "command": "*** Begin Patch\n*** Update File: a.py\n@@\n-x = 1\n-y\n+x = 2\n"
            "*** End Patch"
        },
    )


def test_a_matcher_of_a_start_is_for_its_source(tmp_path: Path) -> None:
    hooks = {
        "SessionStart": [
            {"matcher": source, "hooks": [{"type": "command", "command": f"echo 'by-{source}'"}]}
            for source in ("startup", "resume", "startup|resume")
        ]
    }
    done, bodies = run(tmp_path, "claude", hooks)
    assert done.stdout == "done\n", done.stderr
    text = json.dumps(bodies[0]["messages"])
    assert '"by-startup"' in text
    assert "by-startup|resume" in text
    assert "by-resume" not in text
