"""The question about a tool call, answered with single keys on a real terminal."""

import contextlib
import json
import os
import shlex
import socket
import sys
import time
from pathlib import Path
from typing import Any

import pexpect
import pytest

from amplifier_app.sessions.store import SessionStore
from amplifier_support.sandbox import available
from tests.support.cli import amplifier_command, child_environment, run_amplifier
from tests.support.plans import mock_plan
from tests.support.processes import is_alive
from tests.support.screen import Emulator
from tests.support.terminal import CTRL_C, ENTER, UP, Chat, Terminal
from tests.support.waiting import wait_until

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="drives a pseudo-terminal"
)

ESC = "\x1b"
EDIT = {
    "name": "edit_file",
    "input": {"file_path": "parse.py", "old_string": "return None", "new_string": "return {}"},
}
CHAIN = {"name": "bash", "input": {"command": "echo one >> log; echo two >> log"}}


def plan(folder: Path, *calls: dict[str, Any]) -> Path:
    (folder / "parse.py").write_text("def parse(text):\n    if not text:\n        return None\n")
    scripted = [{**call, "id": f"c{n}"} for n, call in enumerate(calls)]
    return mock_plan(
        folder,
        [{"tool_calls": scripted}, "done here"],
        tools=[{"module": "tool-filesystem"}, {"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval"}],
    )


def run(
    folder: Path,
    *calls: dict[str, Any],
    size: tuple[int, int] = (80, 30),
    env: dict[str, str | None] | None = None,
    cold: bool = False,
) -> Terminal:
    file = plan(folder, *calls)
    return Terminal("run", "-f", file, "go", cwd=folder, size=size, env=env, cold=cold)


def test_an_edit_is_shown_and_approved_with_one_key(tmp_path: Path) -> None:
    with run(tmp_path, EDIT) as terminal:
        terminal.until("[?] more")
        terminal.type("x7 \t")  # other keys do nothing
        terminal.until(r"ignored 'x7 \\t'")
        terminal.type("yys")  # neither does text
        terminal.until("yys': press")
        terminal.type("y")
        terminal.until("done here")
        assert terminal.finish() == 0
    lines = terminal.lines()
    head = next(n for n, line in enumerate(lines) if line.startswith("╭ Edit"))
    assert [word for word in lines[head].split() if "─" not in word] == [
        *("╭", "Edit", "parse.py", "+1", "−1")
    ]
    assert [line.split()[1:4] for line in lines[head + 3 : head + 5]] == [
        ["3", "-", "return"],
        ["3", "+", "return"],
    ]
    # The keys are gone, what was decided stays.
    assert not any("y yes" in line for line in lines)
    assert any("Allow once" in line for line in lines)
    assert "return {}" in (tmp_path / "parse.py").read_text()


def test_a_card_fits_the_screen_and_its_diff_is_shown_once(tmp_path: Path) -> None:
    content = "".join(f"line {n}\n" for n in range(60))
    write = {"name": "write_file", "input": {"file_path": "new", "content": content}}
    command = {"name": "bash", "input": {"command": f"cat > x <<E\n{content}E"}}
    size = (40, 24)
    with run(tmp_path, EDIT, write, command, size=size) as terminal:
        for number, head in enumerate(("Edit", "Write", "Run"), 1):
            terminal.until(f"{number} of 3.*[?] more")
            emulator = Emulator(*size)
            emulator.feed(terminal.raw)
            lines = emulator.visible()
            (first,) = (line for line in lines if f"{number} of 3" in line)
            assert first.startswith(f"╭ {head} ") or lines[lines.index(first) - 1].startswith("╭")
            assert lines[-1] == "" or number > 1
            terminal.type("y")
        terminal.until("done here")
        terminal.finish()
    lines = terminal.lines()
    assert sum("return {}" in line for line in lines) == 1
    assert any("edit_file parse.py" in line and "+1 −1" in line for line in lines)


def test_the_keys_stay_when_a_chat_is_resized(tmp_path: Path) -> None:
    with Chat("-f", plan(tmp_path, EDIT), cwd=tmp_path, size=(100, 30)) as terminal:
        terminal.enter("go", "[?] more")
        emulator = Emulator(100, 30)
        emulator.feed(before := terminal.raw)
        emulator.resize(40, 30)
        terminal.process.setwinsize(30, 40)
        terminal.until("[?] more")
        with contextlib.suppress(pexpect.TIMEOUT):  # whatever else reacts to the size
            while True:
                terminal.raw += terminal.process.read_nonblocking(1 << 16, timeout=0.8)
        emulator.feed(terminal.raw[len(before) :])
        shown = [line for line in emulator.visible() if line]
        assert shown[-1].endswith("? more")
        assert any(line.startswith("y yes") for line in shown)
        terminal.type("n")
        terminal.until("done here")
        terminal.prompt()


def test_questions_and_lists_can_be_suspended(tmp_path: Path) -> None:
    environment = child_environment(
        Path(os.environ["AMPLIFIER_HOME"]), {"TERM": "xterm-256color", "PS1": "$ "}
    )
    options: dict[str, Any] = {"encoding": "utf-8", "timeout": 30, "dimensions": (30, 80)}
    command = ["--norc", "--noediting", "-i"]
    with pexpect.spawn("bash", command, env=environment, cwd=tmp_path, **options) as shell:

        def suspend(shown: str) -> None:
            shell.expect(shown)
            shell.send("\x1a")
            shell.expect("Stopped")
            shell.sendline("fg")

        program = shlex.join(amplifier_command())
        shell.sendline(f"{program} run -f {shlex.quote(str(plan(tmp_path, EDIT)))} go")
        suspend(" more")
        # The card is shown again, whatever was written in between.
        shell.expect(r"(?s)Edit.* more")
        shell.send("t")
        suspend("No. Instead:")
        shell.expect("No. Instead:")
        shell.send("\x1b")
        shell.expect(" more")
        shell.send("y")
        shell.expect("done here")
        shell.sendline(f"{program} resume")
        suspend("type to filter")
        shell.expect("type to filter")
        shell.send("\x1b")
        shell.expect_exact("$ ")
        assert "cursor position" not in shell.before
        shell.sendline("echo the shell is $((1 + 1))")
        shell.expect("the shell is 2")
    assert "return {}" in (tmp_path / "parse.py").read_text()


def test_a_call_whose_terminal_vanishes_was_not_denied(tmp_path: Path) -> None:
    arguments = ("run", "-f", plan(tmp_path, EDIT), "--session", "s1")
    with Terminal(*arguments, cwd=tmp_path) as terminal:
        terminal.prompt()
        terminal.enter("go", "[?] more")
        pid = terminal.process.pid
        assert pid is not None
        terminal.process.ptyproc.fileobj.close()  # pyright: ignore[reportAttributeAccessIssue]
        terminal.process.closed = True
        wait_until(lambda: not is_alive(pid))
    transcript = Path(os.environ["AMPLIFIER_HOME"]) / "sessions/s1/transcript.jsonl"
    last = json.loads(transcript.read_text().splitlines()[-1])
    assert "denied" not in str(last)
    with Terminal("resume", "s1", cwd=tmp_path) as terminal:
        terminal.until("the last prompt is unfinished; Enter on an empty line continues it")
        terminal.prompt()


def test_each_waiting_call_is_counted_and_a_session_answer_covers_its_repetition(
    tmp_path: Path,
) -> None:
    other = {"name": "bash", "input": {"command": "touch made"}}
    reading = {"name": "bash", "input": {"command": "ls"}}
    with run(tmp_path, CHAIN, reading, other, CHAIN) as terminal:
        terminal.until("1 of 3")
        terminal.until("asking because it redirects")
        terminal.until("p yes to exactly this command")
        terminal.type("p")
        terminal.until("2 of 2.*touch made.*[?] more")
        terminal.type("n")
        terminal.until("touch made · denied by you")
        terminal.until("done here")
        assert terminal.finish() == 8
    # The two calls run side by side.
    assert sorted((tmp_path / "log").read_text().split()) == ["one", "one", "two", "two"]
    assert not (tmp_path / "made").exists()


def test_always_names_its_file_and_is_stored_there(tmp_path: Path) -> None:
    with run(tmp_path, EDIT) as terminal:
        stored = Path(os.environ["AMPLIFIER_HOME"])
        terminal.until("[?] more")
        terminal.type("?")
        terminal.until(
            "p +yes to edits in this directory, in this session.*P +the same, also in later sessions"
        )
        terminal.type("P")
        terminal.until("done here")
        assert terminal.finish() == 0
    (file,) = [path for path in stored.rglob("approvals.jsonl") if "sessions" not in path.parts]
    assert json.loads(file.read_text())["tool"] == "edit_file"
    assert file.name in "".join(terminal.shown.split())


def test_a_denial_can_tell_the_model_why(tmp_path: Path) -> None:
    with run(tmp_path, CHAIN) as terminal:
        terminal.until("t no, because …")
        terminal.type("t")
        terminal.until("No. Instead:")
        terminal.type(ESC)
        terminal.until("t no, because …")
        terminal.type("t")
        terminal.until("No. Instead:")
        terminal.enter("use make", "done here")
        assert terminal.finish() == 8
    lines = terminal.lines()
    assert lines.count("  No. Instead: use make") == 1, "what was sent stays"
    (transcript,) = Path(os.environ["AMPLIFIER_HOME"]).rglob("transcript.jsonl")
    assert "the user says: use make" in transcript.read_text()
    assert "Do not try to reach the same" not in terminal.shown


@pytest.mark.parametrize(("key", "code"), [(ESC, 8), (CTRL_C, 130)])
def test_escape_denies_and_ctrl_c_stops_the_turn(tmp_path: Path, key: str, code: int) -> None:
    with run(tmp_path, CHAIN) as terminal:
        terminal.until("[?] more")
        terminal.type(key)
        if code == 8:
            terminal.until("done here")
        assert terminal.finish() == code
    assert not (tmp_path / "log").exists()
    assert ("done here" in terminal.shown) is (code == 8)
    assert terminal.shown.count("✗ 1 bash") == 1
    assert ("denied by you" in terminal.shown) is (code == 8)
    assert "--approve allow" not in terminal.shown


def test_ctrl_c_at_a_question_is_no_answer_to_it(tmp_path: Path) -> None:
    with Chat("-f", plan(tmp_path, CHAIN), cwd=tmp_path, size=(80, 30)) as terminal:
        terminal.enter("go", "[?] more")
        terminal.type(CTRL_C)
        terminal.until("✗ 1 bash echo one >> log; echo two >> log · not run\r?\n")
        terminal.until("the prompt was stopped before this call")
        terminal.until("stopped; Enter on an empty line continues")
        terminal.prompt()
        terminal.ask("/why", "outcome +not run: the prompt was stopped before this call")
        terminal.type("/quit" + ENTER)
        terminal.finish()
    assert "denied" not in terminal.shown
    assert "allowed by" not in terminal.shown
    home = Path(os.environ["AMPLIFIER_HOME"])
    (transcript,) = home.rglob("transcript.jsonl")
    assert "not run: the prompt was stopped before this call" in transcript.read_text()
    assert not [*home.rglob("approvals.jsonl")]


def test_the_whole_file_is_shown_on_request(tmp_path: Path) -> None:
    content = "".join(f"line {n}\n" for n in range(60))
    call = {"name": "write_file", "input": {"file_path": "new", "content": content}}
    script = tmp_path / "pager"
    script.write_text(
        "#!/bin/sh\n[ $LESS = R ] && [ $(grep -c 'line 1 \\|line 59 ') = 2 ] && echo line 1 and 59\n"
    )
    script.chmod(0o755)
    for pager, is_paged in (("cat", False), (str(script), True)):
        with run(tmp_path, call, size=(40, 24), env={"AMPLIFIER_PAGER": pager}) as terminal:
            terminal.until("more changed lines")
            terminal.until("[?] more")
            assert "line 59" not in terminal.shown
            terminal.type("v")
            terminal.until("line 1 and 59" if is_paged else "line 59")
            terminal.until("[?] more")
            assert ("line 59" in terminal.shown) is not is_paged
            terminal.type("n")
            terminal.until("done here")
            terminal.finish()
        assert not (tmp_path / "new").exists()


def own_keys(folder: Path, keys: str) -> None:
    (folder / "settings.yaml").write_text(f"display: {{approval_keys: {keys}}}\n")


def test_the_keys_can_be_changed_in_the_settings_of_the_user(tmp_path: Path) -> None:
    home = Path(os.environ["AMPLIFIER_HOME"])
    own_keys(home, "{y: j, n: k, p: '1', '?': m, t: y}")
    with run(tmp_path, EDIT, CHAIN) as terminal:
        terminal.until("j yes   1 yes to edits.*k no   y no, because.*m more")
        terminal.type("m")
        terminal.until("m less.*Esc +no")
        terminal.type("n")
        terminal.until("ignored 'n'")
        terminal.type("j")
        terminal.until("Allow once")
        terminal.until("j yes.*m more")
        terminal.type("k")
        terminal.until("done here")
        terminal.finish()
    assert "return {}" in (tmp_path / "parse.py").read_text()
    assert not (tmp_path / "log").exists()


def test_a_project_cannot_change_what_a_key_means(tmp_path: Path) -> None:
    (tmp_path / ".amplifier").mkdir()
    own_keys(tmp_path / ".amplifier", "{y: n, n: y}")
    run_amplifier("trust", "--yes", cwd=tmp_path)
    with run(tmp_path, EDIT) as terminal:
        terminal.until("'display.approval_keys' is ignored: only your own settings")
        terminal.until("y yes .* n no .*[?] more")
        terminal.type("n")
        terminal.until("done here")
    assert "return None" in (tmp_path / "parse.py").read_text()


def test_keys_that_cannot_be_used_are_a_problem(tmp_path: Path) -> None:
    for keys, problem in (
        ("{y: n}", "'n' in 'display.approval_keys' has two meanings"),
        ("{x: y}", "unknown key 'x' in display.approval_keys"),
        ("{y: ' '}", "expected one character"),
        ("y", "expected a mapping such as"),
    ):
        own_keys(Path(os.environ["AMPLIFIER_HOME"]), keys)
        done = run_amplifier("run", "-P", "mock", "hi", cwd=tmp_path)
        assert done.code == 78
        assert problem in done.stderr


@pytest.mark.parametrize("how", ["--plain", "dumb"])
def test_plain_output_has_the_same_card_in_lines_that_stay(tmp_path: Path, how: str) -> None:
    file, is_dumb = plan(tmp_path, EDIT, EDIT, EDIT), how == "dumb"
    arguments = ["run", "-f", file, *([] if is_dumb else [how])]
    env = {"TERM": "dumb"} if is_dumb else {}
    with Terminal(*arguments, cwd=tmp_path, env=env) as terminal:
        terminal.prompt()
        terminal.enter("go", r"3 -         return None", "[?] more")
        terminal.type("t")
        terminal.until("No. Instead: ")
        terminal.type("\x1b")  # goes back
        terminal.until("[?] more")
        terminal.type("?")
        terminal.until("Ctrl-C +stop the prompt")
        terminal.type("t")
        terminal.until("No. Instead: ")
        terminal.type("leave")
        terminal.type(UP)
        terminal.enter(" it", "2 of 3.*[?] more")
        terminal.type("what ")
        terminal.until("ignored 'what '")
        terminal.type("y")
        terminal.until("Allow once.*3 of 3.*[?] more")
        terminal.type("t" if is_dumb else "n")
        if is_dumb:  # Ctrl-C also works in a line that the terminal edits.
            terminal.until("No. Instead: ")
            terminal.type(CTRL_C)
        terminal.prompt()
        terminal.type("/quit" + ENTER)
        terminal.finish()
    # The terminal shows the keys that it does not know.
    assert "\x1b" not in terminal.unmarked
    assert terminal.raw.count("leave^[[A it") == 1
    (session,) = SessionStore().summaries()
    results = [item for item in SessionStore().read(session.id)[1] if item["role"] == "tool"]
    assert "the user says: leave it" in str(results[0])
    assert ("return {}" in (tmp_path / "parse.py").read_text()) is not is_dumb


@pytest.mark.parametrize("option", [(), ("--plain",)])
def test_a_letter_or_a_word_and_enter_is_an_answer(tmp_path: Path, option: tuple[str, ...]) -> None:
    calls = [{"name": "bash", "input": {"command": f"touch made-{n}; true"}} for n in range(3)]
    file = plan(tmp_path, *calls)
    with Chat("-f", file, *option, cwd=tmp_path, size=(80, 50)) as terminal:
        terminal.type("go" + ENTER)
        for number, answer in enumerate(("Yes", "no", "yess")):
            terminal.until(f"{number + 1} of 3")
            terminal.until("[?] more")
            for key in answer + ENTER:
                terminal.type(key)
                time.sleep(0.25 if answer == "no" else 0)  # as a person types
        terminal.until("ignored")
        terminal.ask("y", "done here")
        terminal.type("/quit" + ENTER)
        terminal.finish()
    assert sorted(path.name for path in tmp_path.glob("made-*")) == ["made-0", "made-2"]
    # Nothing of an answer is a message to the model.
    (transcript,) = Path(os.environ["AMPLIFIER_HOME"]).rglob("transcript.jsonl")
    messages = [json.loads(line) for line in transcript.read_text().splitlines()]
    assert sum(message.get("role") == "user" for message in messages) == 1


def test_an_answer_typed_before_the_question_could_be_read_waits(tmp_path: Path) -> None:
    with run(tmp_path, CHAIN, CHAIN, cold=True) as terminal:
        terminal.until("[?] more")
        terminal.type("y" + ENTER)
        time.sleep(0.4)
        terminal.type("es, do it")
        terminal.until("ignored")
        terminal.type("n")
        terminal.until("2 of 2.*[?] more")
        terminal.type("n")
        terminal.until("done here")
        assert terminal.finish() == 8
    assert not (tmp_path / "log").exists()


def test_keys_typed_before_the_question_are_not_an_answer(tmp_path: Path) -> None:
    slow = [{"tool_calls": [{**CHAIN, "id": "c0"}], "delay": 0.5}, "done here"]
    file = mock_plan(
        tmp_path, slow, tools=[{"module": "tool-bash"}], hooks=[{"module": "hooks-approval"}]
    )
    with Terminal("run", "-f", file, "go", cwd=tmp_path) as terminal:
        terminal.type("yyy")
        terminal.until("[?] more")
        terminal.type("n")
        terminal.until("done here")
        assert terminal.finish() == 8
    assert not (tmp_path / "log").exists()


def test_approve_changes_how_the_next_requests_are_answered(tmp_path: Path) -> None:
    asking = {"tool_calls": [CHAIN]}
    file = mock_plan(
        tmp_path,
        [asking, "done one", asking, "done two", asking, "done three", asking, "done four"],
        tools=[{"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval"}],
    )
    with Terminal("run", "-f", file, cwd=tmp_path, size=(80, 40)) as terminal:
        terminal.until("/help for commands")
        terminal.type(f"first{ENTER}")
        terminal.until("[?] more")
        terminal.type("p")
        terminal.until("done one")
        terminal.ask("/why", r"allowed by +your answer")
        terminal.type(f"/approve forget{ENTER}")
        terminal.until("ask again")
        terminal.type(f"second{ENTER}")
        terminal.until("[?] more")
        terminal.type("n")
        terminal.until("done two")
        terminal.ask("/approve deny", "deny without asking")
        terminal.ask("third", "done three")
        denied = "denied by +policy: it needs approval, which was denied"
        terminal.ask("/why", r"outcome +denied *\r?\n", denied)
        terminal.type(f"/approve allow{ENTER}")
        terminal.until(r"approval\s+requests: allow without asking")
        terminal.until(" ask → allow · mock-model")
        terminal.type(f"/mode edits{ENTER}")
        terminal.until(r"approval\s+requests: allow without asking")
        terminal.until(" edits → allow · mock-model")
        terminal.type(f"/status{ENTER}")
        terminal.until("mode +edits; approval requests: allow without asking")
        terminal.type(f"fourth{ENTER}")
        terminal.until("done four")
        terminal.type(f"/quit{ENTER}")
        assert terminal.finish() == 0
    assert (tmp_path / "log").read_text() == "one\ntwo\none\ntwo\n"


@pytest.mark.skipif(not available.kernel_layer().works, reason="there is no sandbox here")
def test_one_command_may_run_outside_the_sandbox_by_a_key_of_its_own(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    write = {"name": "bash", "input": {"command": "echo x >> ../outside"}}
    with run(work, write, write) as terminal:
        terminal.until("[?] more")
        terminal.type("?")
        terminal.until(
            "o +yes, once and outside the sandbox, with all your rights.*stop the prompt"
        )
        terminal.type("o")
        # The answer counts once: the same command asks again.
        terminal.until("Allow once, outside the sandbox.*[?] more")
        terminal.type("y")
        terminal.until("done here")
        terminal.finish()
    assert (tmp_path / "outside").read_text() == "x\n"


SANDBOXED = [{"action": "sandboxed", "tool": "bash"}]


@pytest.mark.skipif(not available.namespace_layer().works, reason="there are no namespaces here")
@pytest.mark.parametrize("key", ["y", "n"])
def test_a_command_that_the_sandbox_blocked_can_run_again_outside(tmp_path: Path, key: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        line = f"exec 3<>/dev/tcp/127.0.0.1/{port} && echo reached it"
        call = {"name": "bash", "input": {"command": line}}
        replies = [{"tool_calls": [call]}, {"tool_calls": [call]}, "done here"]
        file = mock_plan(
            tmp_path,
            replies,
            tools=[{"module": "tool-bash"}],
            hooks=[{"module": "hooks-approval", "config": {"rules": SANDBOXED}}],
        )
        with Terminal("run", "-f", file, "go", cwd=tmp_path) as terminal:
            terminal.until("Run it again outside the sandbox.*[?] more")
            terminal.type(key)
            terminal.until("done here")
            assert terminal.finish() == (0 if key == "y" else 8)
        server.setblocking(False)
        reached = 0
        with contextlib.suppress(BlockingIOError):
            while True:
                server.accept()[0].close()
                reached += 1
        assert reached == (1 if key == "y" else 0)
    shown = " ".join(terminal.shown.split())
    # The same command is asked about once.
    assert shown.count("Run it again outside the sandbox") == 1
    assert ("it ran outside the sandbox, as the user allowed" in shown) is (key == "y")


@pytest.mark.parametrize(
    ("mode", "approvals"),
    [
        ("read-only", []),
        ("edits", [{"action": "deny", "path": "secrets/**"}]),
        ("edits", None),
    ],
    ids=["read-only", "hidden-files", "not-a-terminal"],
)
def test_nothing_else_leaves_the_sandbox(
    tmp_path: Path, mode: str, approvals: list[dict[str, Any]] | None
) -> None:
    call = {"name": "bash", "input": {"command": "exec 3<>/dev/tcp/127.0.0.1/9"}}
    file = mock_plan(
        tmp_path,
        [{"tool_calls": [call]}, "done here"],
        tools=[{"module": "tool-bash"}],
        hooks=[{"module": "hooks-approval", "config": {"rules": SANDBOXED}}],
        **({"approvals": approvals} if approvals else {}),
    )
    arguments = ("run", "-f", file, "--mode", mode, "go")
    if approvals is None:
        done = run_amplifier(*arguments, "--output", "json", cwd=tmp_path)
        assert json.loads(done.stdout)["response"] == "done here"
        return
    with Terminal(*arguments, cwd=tmp_path) as terminal:
        terminal.until("done here")
        terminal.finish()
    assert "Run it again outside" not in terminal.shown


def test_no_policy_answers_with_outside_the_sandbox(tmp_path: Path) -> None:
    work = tmp_path / "work"
    work.mkdir()
    write = {"name": "bash", "input": {"command": "echo x >> ../outside"}}
    done = run_amplifier("run", "-f", plan(work, write), "go", "--approve", "allow", cwd=work)
    assert "outside the sandbox" not in done.stdout + done.stderr
    if available.kernel_layer().works:
        assert not (tmp_path / "outside").exists()
