"""What the hook decides, remembers and writes down."""

import asyncio
import json
import os
import stat
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.runtime.approvals import Approvals
from amplifier_app.runtime.capabilities import Mentions, Namespace
from amplifier_core.approval import ApprovalTimeoutError, ToolApproval, ToolApprovalAnswer
from amplifier_core.models import HookResult
from amplifier_core.testing import TestCoordinator
from amplifier_modules.hooks_approval import mount
from tests.support import planted


class Session:
    """A session in a folder, with a person who gives these answers, then none."""

    def __init__(self, folder: Path, *answers: Any) -> None:
        self.folder = folder
        self.answers = list(answers)
        self.asked: list[tuple[str, list[str]]] = []
        self.events: list[tuple[str, dict[str, Any]]] = []
        self.coordinator = TestCoordinator()
        self.coordinator.approval_system = self
        for name in ("session", "config"):
            (folder.parent / name).mkdir(exist_ok=True)
            self.coordinator.register_capability(f"{name}.dir", str(folder.parent / name))
        self.coordinator.register_capability("session.working_dir", str(folder))
        for event in ("approval:required", "approval:granted", "approval:denied"):
            self.coordinator.hooks.register(event, self._note)

    def _note(self, event: str, data: dict[str, Any]) -> None:
        self.events.append((event, dict(data)))

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float, default: str
    ) -> Any:
        self.asked.append((prompt, options))
        answer = self.answers.pop(0) if self.answers else "Deny"
        if isinstance(answer, BaseException):
            raise answer
        return answer

    async def call(self, tool: str, **values: Any) -> HookResult:
        data = {"tool_name": tool, "tool_call_id": "c1", "tool_input": values, "input": values}
        return await self.coordinator.hooks.emit("tool:pre", data)

    async def allows(self, tool: str, **values: Any) -> bool:
        return (await self.call(tool, **values)).action == "continue"

    @property
    def audit(self) -> list[dict[str, Any]]:
        text = (self.folder.parent / "session" / "approvals.jsonl").read_text()
        return [json.loads(line) for line in text.splitlines()]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "work"
    path.mkdir()
    return path


async def opened(folder: Path, *answers: Any, **config: Any) -> Session:
    session = Session(folder, *answers)
    await mount(session.coordinator, config)
    return session


async def test_tools_that_change_things_ask_by_default(folder: Path) -> None:
    session = await opened(folder)
    for tool in ("read_file", "list_directory", "grep", "glob"):
        assert await session.allows(tool, path="x")
    assert not session.asked
    assert not await session.allows("bash", command="make")
    assert not await session.allows("write_file", path="x", content="y")
    assert not await session.allows("edit_file", path="x", old_string="a", new_string="b")
    assert not await session.allows("unheard_of")
    assert len(session.asked) == 4


async def test_the_first_rule_that_matches_decides(folder: Path) -> None:
    rules = [
        {"action": "deny", "command": "git push *", "reason": "only people push"},
        {"action": "allow", "tool": "bash", "command": ["git *", "ls"]},
        {"action": "deny", "tool": "b*"},
    ]
    session = await opened(folder, rules=rules)
    assert await session.allows("bash", command="git log -3")
    refused = await session.call("bash", command="git push origin")
    assert refused.action == "deny"
    assert refused.reason is not None
    assert "rule 1" in refused.reason
    assert "only people push" in refused.reason
    assert "`git *` or `ls`" in refused.reason
    assert not await session.allows("bash", command="ls; git push")
    assert not await session.allows("bash", command="make")
    assert [record["by"] for record in session.audit] == ["rule 2", "rule 1", "rule 1", "rule 3"]
    assert not session.asked


@pytest.mark.parametrize("config", [{"rules": [{"action": "allow"}]}, {"default": "allow"}])
async def test_nothing_allows_a_compound_command(folder: Path, config: dict[str, Any]) -> None:
    session = await opened(folder, **config)
    assert await session.allows("bash", command="ls -l")
    assert not session.asked
    for values in ({"command": "ls | sh"}, {"command": ["ls"]}, {}, {"command": "ls", "cmd": "x"}):
        assert not await session.allows("bash", **values)
    assert len(session.asked) == 4
    assert "several commands" in session.asked[0][0]


async def test_a_command_is_allowed_in_the_working_directory_only(folder: Path) -> None:
    (folder / "sub").mkdir()
    (folder / "out").symlink_to(folder.parent)
    session = await opened(folder, rules=[{"action": "allow", "command": "make *"}])
    assert await session.allows("bash", command="make x", working_directory=".")
    for elsewhere in ("sub", "..", "out", "/tmp", "sub/../..", "a\0b", 3):
        assert not await session.allows("bash", command="make x", working_directory=elsewhere)


async def test_paths_are_where_they_lead(folder: Path) -> None:
    for name in ("src/deep", "secret", "src-evil"):
        (folder / name).mkdir(parents=True)
    (folder / "src/link").symlink_to(folder / "secret")
    (folder / "src/away").symlink_to("/etc")
    rules = [
        {"action": "deny", "path": "secret/**"},
        {"action": "allow", "tool": "write_file", "path": ["src/**", "*.md"]},
    ]
    session = await opened(folder, rules=rules)
    inside = ("src/a", "src/deep/b.py", "./src/../src/a", str(folder / "src/a"), "x.md")
    for path in inside:
        assert await session.allows("write_file", path=path, content=""), path
    outside = (
        "src/../a",
        "src-evil/a",
        "src/away/passwd",
        "deep/x.md",
        "/etc/passwd",
        "src/\0",
        "",
    )
    for path in outside:
        assert not await session.allows("write_file", path=path, content=""), path
    asked = len(session.asked)
    assert asked == len(outside)
    for path in ("secret/a", "src/link/a", "src/deep/../../secret/a", "SECRET/a"):
        assert not await session.allows("read_file", path=path), path
    assert not await session.allows("move", source="src/a", target="secret/a")
    assert not await session.allows("many", files=[{"path": "src/a"}, {"path": "secret/a"}])
    assert len(session.asked) == asked


async def test_once_is_once_and_a_session_is_a_session(folder: Path) -> None:
    session = await opened(folder, "Allow once", "Allow for this session")
    for _ in range(3):
        assert await session.allows("bash", command="make")
    assert len(session.asked) == 2
    assert session.asked[0] == (
        "Run `make`?",
        ["Allow once", "Allow for this session", "Allow always", "Deny"],
    )
    for values in ({"command": "make "}, {"command": "make", "working_directory": "."}):
        assert not await session.allows("bash", **values)
    another = await opened(folder)
    assert not await another.allows("bash", command="make")


async def test_session_approvals_are_shared_with_sub_agents(
    folder: Path,
) -> None:
    session = await opened(folder, "Allow for this session")
    assert await session.allows("bash", command="make")
    below = Session(folder, "Allow for this session")
    remembered = session.coordinator.get_capability("approval.remembered")
    below.coordinator.register_capability("approval.remembered", remembered)
    await mount(below.coordinator, {})
    assert await below.allows("bash", command="make")
    assert await below.allows("bash", command="make test")
    assert await session.allows("bash", command="make test")
    assert (len(session.asked), len(below.asked)) == (1, 1)


class Card:
    """Shows what an answer applies to, and gives the same answer each time."""

    def __init__(self, option: str, range_: int | None = None) -> None:
        self.option = option
        self.range = range_
        self.ranges: list[str] = []
        self.scopes: list[str] = []

    async def request_tool_approval(
        self, request: ToolApproval, timeout: float
    ) -> ToolApprovalAnswer:
        self.ranges = request.ranges
        self.scopes.append(request.ranges[request.usual_range])
        return ToolApprovalAnswer(self.option, range=self.range)


async def test_an_edit_allowed_for_the_session_allows_its_folder(folder: Path) -> None:
    for name in ("src/deep", "src-evil", ".git"):
        (folder / name).mkdir(parents=True)
    (folder / "src" / "out").symlink_to(folder / "src-evil")
    session = await opened(folder)
    card = Card("Allow for this session")
    session.coordinator.approval_system = card

    async def asks(tool: str, path: str) -> list[str]:
        card.scopes.clear()
        assert await session.allows(tool, path=path, content="")
        return card.scopes

    assert await asks("edit_file", "src/a.py") == ["edits in src/"]
    for path in ("src/a.py", "src/b.py", "src/deep/c.py"):
        assert await asks("write_file", path) == [], path
    assert await asks("write_file", "src/out/a") == ["edits in src-evil/"]
    assert await asks("write_file", "a") == ["edits in this directory"]
    assert await asks("edit_file", "tests/new/b.py") == []
    assert await asks("write_file", ".git/config") == ["write_file .git/config"]
    assert await asks("write_file", "/tmp/x") == ["write_file /tmp/x"]


@pytest.mark.parametrize(
    ("command", "offered"),
    [
        ("pytest -q tests/a.py", ["pytest -q tests/a.py", "pytest -q", "pytest"]),
        ("git add a b", ["git add a b", "git add a", "git add"]),
        ("npm run build", ["npm run build"]),
        ("python -m pytest -q", ["python -m pytest -q", "python -m pytest"]),
        ("uv run pytest", ["uv run pytest"]),
        ("make", ["make"]),
        ("ruff check '*.py' x", ["ruff check", "ruff"]),
        ("npx tool x", ["npx tool x", "npx tool"]),
        ("deploy --token sk-ant-api03-0123456789abcdefghijKLMNOP", ["deploy --token", "deploy"]),
        *(
            (command, [])
            for command in (
                *("sh -c ls", "bash x.sh", "python x.py", "node x.js", "sudo make", "env make"),
                *("make; ls", "make | tee x", "make > x", "$(make)", "x=1 make", "rm -r build"),
                *("git push", "git -C .. status", "npx", "npm exec x", "docker run x", "git"),
                *(
                    "uv run python x.py",
                    "xargs ls",
                    "tar xf a",
                    "npm run",
                    "perl -e 1",
                    "sed -i s/a/b/ x",
                ),
            )
        ),
    ],
)
async def test_an_answer_can_be_about_commands_that_start_alike(
    folder: Path, command: str, offered: list[str]
) -> None:
    session = await opened(folder)
    session.coordinator.approval_system = card = Card("Allow once")
    assert await session.allows("bash", command=command)
    about = "commands that start with "
    assert card.ranges == ["exactly this command", *(about + words for words in offered)]


async def test_an_answer_about_a_beginning_allows_only_plain_harmless_commands(
    folder: Path,
) -> None:
    (folder / "sub").mkdir()
    session = await opened(folder)
    session.coordinator.approval_system = card = Card("Allow for this session")

    async def asks(command: str, **more: Any) -> bool:
        card.scopes.clear()
        assert await session.allows("bash", command=command, **more)
        return card.scopes != []

    assert await asks("git add a")
    for command in ("git add b", "git add -A .", "'git' add 'b c'"):
        assert not await asks(command), command
    card.option = "Allow once"
    for command in (
        *(
            "git commit -m x",
            "git add b; ls",
            "git add $(ls)",
            "git add b > c",
            "git  -c a.b=c add b",
        ),
        *("./git add b", "sudo git add b", "git add b\nls"),
    ):
        assert await asks(command), command
    assert await asks("git add b", working_directory="sub")
    card.option = "Allow for this session"
    assert await asks("git checkout main")
    card.option = "Allow once"
    assert not await asks("git checkout other")
    assert await asks("git checkout -- .")


async def test_a_wider_and_a_narrower_answer_are_remembered_for_the_project(folder: Path) -> None:
    session = await opened(folder)
    session.coordinator.approval_system = card = Card("Allow always", 2)
    assert await session.allows("bash", command="pytest -q a")
    assert card.ranges[2] == "commands that start with pytest -q"
    card.range = 1
    assert await session.allows("mcp_search", query="x")
    assert card.ranges[1] == "every call of mcp_search"
    card.range = 99
    assert await session.allows("write_file", path="a", content="x")
    again = await opened(folder, rules=[{"action": "deny", "command": "pytest -q evil*"}])
    assert await again.allows("bash", command="pytest -q b")
    assert not await again.allows("bash", command="pytest -q evil")
    assert not await again.allows("bash", command="pytest b")
    assert await again.allows("mcp_search", query="y")
    assert await again.allows("write_file", path="a", content="y")
    assert not await again.allows("write_file", path="b", content="y")
    elsewhere = folder.parent / "other"
    elsewhere.mkdir()
    assert not await (await opened(elsewhere)).allows("bash", command="pytest -q b")


async def test_no_answer_is_about_every_edit_or_every_page(folder: Path) -> None:
    session = await opened(folder)
    session.coordinator.approval_system = card = Card("Allow for this session")
    for tool, values in (
        ("apply_patch", {"patch": "x", "path": ".git/config"}),
        ("multi_edit", {"files": [{"path": "/etc/x"}, {"path": "y"}]}),
        ("web_fetch", {"url": "https://[evil"}),
        ("web_fetch", {"url": 3}),
    ):
        assert await session.allows(tool, **values)
        assert card.ranges == [f"exactly this call of {tool}"]


async def test_pages_are_allowed_by_host(folder: Path) -> None:
    session = await opened(
        folder, rules=[{"action": "deny", "tool": "web_fetch", "host": "*.Evil.example"}]
    )
    session.coordinator.approval_system = card = Card("Allow for this session")
    assert await session.allows("web_fetch", url="https://docs.python.org/3/")
    assert card.scopes == ["pages of docs.python.org"]
    assert await session.allows("web_fetch", url="http://docs.python.org:8080/x?y")
    assert len(card.scopes) == 1
    for url in ("https://docs.python.org.evil/", "https://x@y/", "https://python.org/"):
        assert await session.allows("web_fetch", url=url)
    assert len(card.scopes) == 4
    for url in ("https://www.EVIL.example/", "https://[evil", 3):
        assert not await session.allows("web_fetch", url=url)


async def test_an_answer_to_a_question_without_its_scope_is_about_one_file(folder: Path) -> None:
    session = await opened(folder, "Allow for this session")
    assert await session.allows("write_file", path="a", content="1")
    assert await session.allows("write_file", path="a", content="2")
    assert not await session.allows("write_file", path="b", content="1")


async def test_always_holds_for_the_same_call_in_the_same_directory(folder: Path) -> None:
    session = await opened(folder, "Allow always", "Allow always")
    assert await session.allows("bash", command="deploy --token hunter2-hunter2")
    assert await session.allows("write_file", path="a", content="1")
    kept = folder.parent / "config" / "approvals.jsonl"
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    assert "hunter2" not in kept.read_text()

    again = await opened(folder)
    assert await again.allows("bash", command="deploy --token hunter2-hunter2")
    assert await again.allows("write_file", path="./a", content="2")
    assert not again.asked
    assert not await again.allows("write_file", path="b", content="1")
    assert not await again.allows("edit_file", path="a", old_string="1", new_string="2")
    elsewhere = folder.parent / "other"
    elsewhere.mkdir()
    assert not await (await opened(elsewhere)).allows(
        "bash", command="deploy --token hunter2-hunter2"
    )
    forbidding = await opened(folder, rules=[{"action": "deny", "tool": "write_file"}])
    assert not await forbidding.allows("write_file", path="a", content="2")

    kept.chmod(0o666)
    assert not await (await opened(folder)).allows("write_file", path="a", content="2")


async def test_a_truncated_question_can_only_be_allowed_once(folder: Path) -> None:
    session = await opened(folder, "Allow once")
    assert await session.allows("bash", command="make " + "x" * 5000)
    prompt, options = session.asked[0]
    assert "1005 more characters" in prompt
    assert options == ["Allow once", "Deny"]


async def test_a_command_of_several_lines_cannot_pose_as_the_question(folder: Path) -> None:
    session = await opened(folder)
    await session.allows("bash", command="ls\rx\n[1] Allow")
    assert "\n  | ls\n  | x\n  | [1] Allow\n" in session.asked[0][0]


@pytest.mark.parametrize(
    "answer",
    [
        "Deny",
        "Yes",
        "allowed",
        "",
        None,
        True,
        ApprovalTimeoutError("late"),
        RuntimeError("broken"),
        asyncio.CancelledError(),
        SystemExit(0),
    ],
)
async def test_anything_but_a_yes_is_a_no(folder: Path, answer: Any) -> None:
    session = await opened(folder, answer)
    result = await session.call("bash", command="make")
    assert result.action == "deny"
    assert result.reason


async def test_without_anybody_to_ask_it_is_denied(folder: Path) -> None:
    session = await opened(folder)
    session.coordinator.approval_system = None
    assert not await session.allows("bash", command="make")


@pytest.mark.parametrize(
    "data",
    [
        None,
        {},
        {"tool_name": "read_file"},
        {"tool_name": 3, "tool_input": {}},
        {"tool_name": "read_file", "tool_input": "x"},
        {"tool_name": "read_file", "tool_input": {"path": "x"}, "input": None},
    ],
)
async def test_malformed_calls_are_denied(folder: Path, data: Any) -> None:
    session = await opened(folder, default="allow")
    assert (await session.coordinator.hooks.emit("tool:pre", data)).action == "deny"


async def test_a_changed_input_is_judged_under_either_name(folder: Path) -> None:
    session = await opened(folder, rules=[{"action": "allow", "command": "ls"}])
    for values in (("ls", "rm x"), ("rm x", "ls")):
        data = {
            "tool_name": "bash",
            "tool_input": {"command": values[0]},
            "input": {"command": values[1]},
        }
        assert (await session.coordinator.hooks.emit("tool:pre", data)).action == "deny"


async def test_every_decision_is_written_down(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MY_KEY", "planted-value-1234")
    session = await opened(folder, "Allow once")
    session.coordinator.register_capability("secrets.variables", ["MY_KEY"])
    await session.allows("bash", command="curl planted-value-1234")
    await session.allows("bash", command="make")
    await session.allows("read_file", path="x")
    file = folder.parent / "session" / "approvals.jsonl"
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert [(record["tool"], record["decision"], record["by"]) for record in session.audit] == [
        ("bash", "allow", "answer (allow once)"),
        ("bash", "deny", "answer"),
        ("read_file", "allow", "read_only"),
    ]
    assert session.audit[0]["what"] == "curl [REDACTED:secret]"
    assert session.audit[0]["ts"]
    assert [event for event, _ in session.events] == [
        "approval:required",
        "approval:granted",
        "approval:required",
        "approval:denied",
    ]
    assert all(data["tool_call_id"] == "c1" for _, data in session.events)


async def test_no_secret_is_written_down(folder: Path) -> None:
    rules = [{"action": "allow", "tool": "b"}, {"action": "deny", "tool": "*", "reason": "is"}]
    session = await opened(folder, rules=rules)
    for name, text in planted.PLANTED.items():
        before = len(session.audit) if session.answers else 0
        await session.call("bash", command=f"echo '{text}'")
        await session.call("b", command=f"echo {text}", note=text)
        await session.call("other", note=[text], password="hunter22")
        # In the path of a file two slashes become one, and the text another one.
        await session.call("write_file" if "//" not in text else "other", path=text, content="")
        secret = planted.SECRETS[name]
        written = json.dumps(session.audit[before:])
        for half in (secret[: len(secret) // 2], secret[len(secret) // 2 :]):
            assert half.startswith("-----") or json.dumps(half)[1:-1] not in written, name
    assert len(session.audit) == 4 * len(planted.PLANTED)
    assert "hunter22" not in json.dumps(session.audit)


async def test_planted_links_are_not_written_through(folder: Path) -> None:
    victim = folder.parent / "victim"
    victim.write_text("")
    session = await opened(folder, "Allow always")
    for name in ("session", "config"):
        os.symlink(victim, folder.parent / name / "approvals.jsonl")
    assert await session.allows("bash", command="make")
    assert victim.read_text() == ""
    assert not await (await opened(folder)).allows("bash", command="make")


async def test_the_policy_of_the_app_answers(folder: Path) -> None:
    session = await opened(folder)
    session.coordinator.approval_system = Approvals("allow")
    assert await session.allows("bash", command="make; make")
    session.coordinator.approval_system = denying = Approvals("ask")
    assert not await session.allows("bash", command="make; make")
    assert len(denying.denied) == 1


@pytest.mark.parametrize(
    "config",
    [
        {"rules": [{"action": "maybe"}]},
        {"rules": [{"tool": "bash"}]},
        {"rules": [{"action": "allow", "command": " "}]},
        {"rules": [{"action": "allow", "command": []}]},
        {"rules": [{"action": "allow", "path": "../x"}]},
        {"timeout": 0},
    ],
)
async def test_a_config_that_could_be_misread_is_refused(config: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="hooks-approval: config is not valid"):
        await mount(TestCoordinator(), config)


async def test_a_rule_means_the_program_and_the_folder_of_the_working_directory(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("objects", "refs"):
        (folder / "evil/.git" / name).mkdir(parents=True)
    (folder / "evil/.git/HEAD").write_text("ref: refs/heads/main\n")
    (folder / "evil/.git/config").write_text("[core]\n\tfsmonitor = ./run\n")
    rules = [
        {"action": "allow", "command": ["git status", "./build", "make *"]},
        {"action": "allow", "command": "pytest *", "path": "evil/**"},
    ]
    session = await opened(folder, rules=rules)
    last = {"folder": str(folder)}
    session.coordinator.register_capability("bash.working_dir", lambda: last["folder"])
    everywhere = ("git status", "./build", "make x", "git diff")
    assert [await session.allows("bash", command=one) for one in everywhere] == [True] * 4
    last["folder"] = str(folder / "evil")
    assert [await session.allows("bash", command=one) for one in everywhere] == [False] * 4
    assert f"it runs in {folder / 'evil'}" in session.asked[0][0]
    assert await session.allows("bash", command="pytest x")
    assert await session.allows("bash", command="make x", working_directory="..")


async def test_an_answer_holds_for_the_folder_a_command_ran_in(folder: Path) -> None:
    (folder / "evil").mkdir()
    session = await opened(folder, "Allow for this session", "Deny")
    last = {"folder": str(folder)}
    session.coordinator.register_capability("bash.working_dir", lambda: last["folder"])
    assert await session.allows("bash", command="./build")
    assert await session.allows("bash", command="./build")
    last["folder"] = str(folder / "evil")
    assert not await session.allows("bash", command="./build")


@pytest.mark.parametrize("entry", ["bin", ".", ""])
async def test_a_program_that_appears_in_the_working_directory_is_not_the_one_meant(
    folder: Path, monkeypatch: pytest.MonkeyPatch, entry: str
) -> None:
    (folder / "bin").mkdir()
    known = folder / "bin/known-tool"
    known.write_text("#!/bin/sh\n")
    known.chmod(0o755)
    place = str(folder / "bin") if entry == "bin" else entry
    monkeypatch.setenv("PATH", f"{place}{os.pathsep}{os.environ['PATH']}")
    session = await opened(folder, rules=[{"action": "allow", "command": ["make *", "known-tool"]}])
    assert await session.allows("bash", command="make x")
    assert await session.allows("bash", command="ls")
    assert await session.allows("bash", command="known-tool")
    for name in ("make", "ls"):
        planted = folder / entry / name
        planted.write_text("#!/bin/sh\n")
        planted.chmod(0o755)
    known.write_text("#!/bin/sh\nevil\n")
    assert not await session.allows("bash", command="make x")
    assert not await session.allows("bash", command="ls | head")
    assert await session.allows("bash", command="known-tool") is (entry != "bin")


class Box:
    """A sandbox that is enforced or not."""

    def __init__(self) -> None:
        self.enforced = True


async def test_a_rule_may_allow_what_the_sandbox_restricts(folder: Path) -> None:
    rules = [
        {"action": "sandboxed", "tool": "bash"},
        {"action": "sandboxed", "tool": "*_file"},
    ]
    session = await opened(folder, rules=rules)
    box = Box()
    session.coordinator.register_capability("bash.sandbox", lambda: box)
    for command in ("make && ./build | sh", "rm x", "cd sub; git status"):
        assert await session.allows("bash", command=command)
    assert not session.asked
    box.enforced = False
    assert not await session.allows("bash", command="rm x")
    assert not await session.allows("write_file", path="x", content="y")
    assert not await session.allows("other_shell", command="rm x")
    assert len(session.asked) == 3


async def test_an_answer_given_for_the_sandbox_does_not_hold_without_it(folder: Path) -> None:
    session = await opened(folder, "Allow for this session", "Deny", "Allow for this session")
    box = Box()
    session.coordinator.register_capability("bash.sandbox", lambda: box)
    assert await session.allows("bash", command="make")
    assert await session.allows("bash", command="make")
    box.enforced = False
    assert not await session.allows("bash", command="make")
    assert await session.allows("bash", command="make")
    box.enforced = True
    assert await session.allows("bash", command="make")
    assert len(session.asked) == 3


async def test_a_module_can_require_approval_of_a_tool(folder: Path) -> None:
    session = await opened(folder, "Allow once", rules=[{"action": "allow"}], mode="auto")
    state = session.coordinator.session_state
    assert await session.allows("read_file", path="x")
    state["require_approval_tools"] = {"read_file"}
    assert await session.allows("read_file", path="x")
    assert not await session.allows("read_file", path="x")
    assert await session.allows("list_directory", path="x")
    state["require_approval_tools"] = set()
    assert await session.allows("read_file", path="x")
    [first, _] = session.asked
    assert "a module asks for approval of this tool" in first[0]


async def test_a_rule_holds_for_links_that_are_named_by_their_bundle(folder: Path) -> None:
    session = await opened(folder, rules=[{"action": "deny", "path": "docs/*"}])
    (folder / "docs").mkdir()
    (folder / "file").touch()
    (folder / "docs" / "link").symlink_to("../file")
    mentions = Mentions({"app": Namespace("app", folder, (folder,))}, str(folder))
    session.coordinator.register_capability("mention_resolver", mentions)
    assert await session.allows("read_file", path="@app:file")
    assert not await session.allows("read_file", path="@app:docs/link")
