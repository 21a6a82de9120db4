"""Resuming as a place: the picker, the header of a resumed chat, and switching inside the chat."""

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import pytest
import yaml

from amplifier_app.sessions.store import SessionStore
from tests.support.batches import small_plan
from tests.support.cli import run_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM, Status, ToolCall
from tests.support.terminal import CTRL_C, ENTER, TAB, Chat, Terminal
from tests.support.waiting import wait_until

CTRL_F, CTRL_R, CTRL_X = "\x06", "\x12", "\x18"


def shows(*texts: str) -> Callable[[list[str]], bool]:
    """Every text is on the screen."""
    return lambda lines: all(any(text in line for line in lines) for text in texts)


@pytest.fixture
def server() -> Iterator[ScriptedLLM]:
    with ScriptedLLM.running(["First answer.", "Second answer.", "After.", "More."]) as server:
        yield server


@pytest.fixture
def env(server: ScriptedLLM) -> dict[str, str]:
    return {"ANTHROPIC_BASE_URL": server.base_url, "ANTHROPIC_API_KEY": "test-key"}


@pytest.fixture
def project(tmp_path: Path, env: dict[str, str]) -> Path:
    plan = tmp_path / "task.yaml"
    plan.write_text(yaml.safe_dump(small_plan({"module": "provider-anthropic"})))
    started = ("run", "-f", plan, "--session", "20260101-000000-aaaaaa", "Review it")
    succeed(*started, cwd=tmp_path, env=env)
    resumed = ("run", "--resume", "aaaaaa", "Look again")
    succeed(*resumed, cwd=tmp_path, env=env)
    store = SessionStore()
    store.create("20260102-000000-bbbbbb", project=str(tmp_path), title="Another one").close()
    store.create("20260103-000000-cccccc", project="/elsewhere", title="Far away").close()
    return tmp_path


def test_the_picker_filters_renames_deletes_and_resumes(project: Path, env: dict[str, str]) -> None:
    store = SessionStore()
    with Terminal("resume", cwd=project, env=env) as terminal:
        lines = terminal.until_lines(shows("type to filter"))
        assert lines[0].startswith("▸ just now    Another one")
        assert lines[1].startswith("  just now    Review it")
        assert lines[1].endswith("2 prompts  claude-sonnet-5-5")
        terminal.type("another")
        # The list may be painted after the filter.
        found = shows("› another")
        terminal.until_lines(lambda lines: found(lines) and "Review" not in "".join(lines))
        terminal.type(CTRL_X)
        terminal.until_lines(shows('Delete "Another one"? [y/N]'))
        terminal.type("y")
        terminal.until_lines(shows("no session of this directory matches"))
        terminal.type("\x7f" * 7 + CTRL_R)
        terminal.until_lines(shows("New title: Review it"))
        terminal.type(" twice" + ENTER)
        terminal.until_lines(shows("▸ just now    Review it twice", "Tab all"))
        terminal.type(TAB)
        terminal.until_lines(shows("Far away", "/elsewhere", "Tab here"))
        terminal.type("twice" + ENTER)
        terminal.until('Resumed "Review it twice" · 2 prompts · just now · plan task')
        terminal.until("› Look again.*Second answer.*1 earlier prompt: /history")
        terminal.quit()
    assert not store.get("20260102-000000-bbbbbb")
    assert store.get("20260103-000000-cccccc")
    assert store.read("aaaaaa")[0]["title"] == "Review it twice"


def test_a_chat_switches_to_a_fork_and_back(project: Path, env: dict[str, str]) -> None:
    store = SessionStore()
    whole = (store.root / "20260101-000000-aaaaaa" / "transcript.jsonl").read_bytes()
    with Terminal("resume", "aaaaaa", cwd=project, env=env) as terminal:
        terminal.until("2 prompts.*1 earlier prompt")
        terminal.enter("/resume nosuch", "there is no session 'nosuch'")
        terminal.ask(
            "/fork 1", r'Forked "Fork at step \d: Review it" · 1 prompt · just now · plan task'
        )
        terminal.enter("go on", r"After\.")
        terminal.ask("/resume aaaaaa", "2 prompts.*Look again.*1 earlier prompt")
        terminal.quit()
    assert (store.root / "20260101-000000-aaaaaa" / "transcript.jsonl").read_bytes() == whole
    points = [
        one
        for one in (store.read(summary.id)[0].get("forked_from") for summary in store.summaries())
        if one
    ]
    assert [point["step"] for point in points] == [1]


def test_a_chat_lists_the_other_sessions_to_choose_from(project: Path, env: dict[str, str]) -> None:
    with Terminal("resume", "aaaaaa", cwd=project, env=env) as terminal:
        terminal.prompt()
        for key in ("\x1b", CTRL_C):
            terminal.type("/resume" + ENTER)
            lines = terminal.until_lines(shows("▸ just now    Another one", "type to filter"))
            assert not any("just now    Review it" in line for line in lines)
            terminal.type(key)
            terminal.prompt()
        terminal.ask("/fork 1", r'Forked "Fork at step \d: Review it" · 1 prompt ')
        for key, expected in ((ENTER, "Resumed"), (CTRL_F, "Forked")):
            terminal.enter("/resume", "type to filter")
            terminal.type("review" + key)
            terminal.until(rf'{expected} "(Fork at step \d: )?Review it" · . prompt')
            terminal.prompt()
        terminal.quit()
    # Two forks, besides the three sessions of the project.
    assert len(SessionStore().summaries()) == 5


def test_a_session_in_use_is_forked_from_the_picker(project: Path, env: dict[str, str]) -> None:
    used = SessionStore().open("20260101-000000-aaaaaa")
    before = (used.path / "transcript.jsonl").read_bytes()
    with Terminal("resume", cwd=project, env=env) as terminal:
        terminal.until("type to filter")
        terminal.type("review" + CTRL_F)
        terminal.until(r'Forked "Fork at step \d: Review it" · 2 prompts')
        terminal.prompt()
        terminal.ask("go on", "After.")
        terminal.quit()
    used.close()
    assert (used.path / "transcript.jsonl").read_bytes() == before


@pytest.mark.parametrize("is_saved", [True, False])
def test_a_failed_prompt_is_sent_to_another_model(tmp_path: Path, is_saved: bool) -> None:
    with ScriptedLLM.running([Status(400), "Answered.", "More."]) as server:
        server.title = '"Explain it".\n'
        options = [] if is_saved else ["--no-save"]
        with Chat(*options, cwd=tmp_path, env=server.env) as terminal:
            terminal.ask("what is this", "Your prompt is kept.*/model")
            terminal.type("/model claude-haiku-4-5" + ENTER)
            if is_saved:
                terminal.until(
                    "the last prompt is unanswered; Enter on an empty line sends it again"
                )
                terminal.prompt()
                terminal.type(ENTER)
            terminal.until("› what is this.*Answered")
            terminal.prompt()
            if is_saved:
                (session,) = SessionStore().summaries()
                read = partial(SessionStore().read, session.id)
                wait_until(lambda: read()[0]["title"] == "Explain it")
                # The request for the title counts.
                assert read()[0]["spent"]["steps"] == 2
                terminal.ask("go on", "More.")
            terminal.quit()
        assert [request.body["model"] for request in server.titles] == [
            *(["claude-haiku-4-5"] if is_saved else [])
        ]
        sent = server.requests[1].body
        assert sent["model"] == "claude-haiku-4-5"
        assert [message["role"] for message in sent["messages"]] == ["user"]


@pytest.mark.parametrize("command", ["/status", "/model claude-haiku-4-5"])
def test_a_title_is_requested_again_after_a_command_that_was_faster(
    tmp_path: Path, command: str
) -> None:
    with ScriptedLLM.running(["One.", "Two.", "Three."]) as server:
        server.title = Reply("Too late", delay=60)
        with Chat("--session", "s1", cwd=tmp_path, env=server.env) as terminal:
            terminal.ask("what is this", "One")
            wait_until(lambda: len(server.titles) == 1)
            terminal.ask(command, "claude-")
            assert SessionStore().read("s1")[0]["title"] == "what is this"
            server.title = "Explain it"
            terminal.ask("thanks", "Two")
            wait_until(lambda: SessionStore().read("s1")[0]["title"] == "Explain it")
            terminal.ask("once more", "Three")
            terminal.quit()
        assert len(server.titles) == 2
        assert b"what is this" in server.titles[1].raw


def test_a_resumed_chat_sends_its_last_prompt_again_with_its_files(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content of a\n")
    with ScriptedLLM.running(["One.", "Two."]) as server:
        with Chat("--session", "s1", cwd=tmp_path, env=server.env) as terminal:
            terminal.ask("read @a.txt ", "One")
            terminal.quit()
        with Terminal("resume", "s1", cwd=tmp_path, env=server.env) as terminal:
            terminal.prompt()
            assert "Enter on an empty line" not in terminal.shown
            terminal.ask("/why", "No tool calls since the session was opened")
            terminal.ask("/retry", "Two")
            terminal.quit()
        first, second = (str(request.body["messages"][-1]) for request in server.requests)
    assert first.count("content of a") == second.count("content of a") == 1


def test_files_changed_since_are_listed(tmp_path: Path) -> None:
    calls = [
        ToolCall("write_file", {"path": name, "content": name}) for name in ("a", "b", "c", "d")
    ]
    with ScriptedLLM.running([Reply("Now write.", calls), "Done."]) as server:
        succeed("run", "--approve", "allow", "go", cwd=tmp_path, env=server.env)
        with Terminal("resume", cwd=tmp_path, env=server.env) as terminal:
            assert "changed since" not in "".join(terminal.until_lines(shows("type to filter")))
            terminal.quit()
        (tmp_path / "a").write_text("another")
        (tmp_path / "b").unlink()
        (tmp_path / "c").write_text("c")
        with Terminal("resume", cwd=tmp_path, env=server.env) as terminal:
            terminal.until_lines(shows("▸ just now", "  2 files changed since: a, b"))
            terminal.type(ENTER)
            terminal.until("Resumed.*plan default\\W+2 files changed since: a, b\\W+› go.*Done")
            terminal.prompt()
            terminal.quit()


def test_plain_output_asks_for_a_number(project: Path, env: dict[str, str]) -> None:
    with Terminal("resume", "--plain", cwd=project, env=env) as terminal:
        terminal.until(r"1  just now.*Another one.*2  just now.*Review it.*Resume which one\?")
        terminal.enter("2", 'Resumed "Review it"')
        terminal.enter("/resume", "bbbbbb +just now +Another one")
        terminal.enter("/model", r"\* claude-sonnet-5-5.*Switch with: /model NAME")
        terminal.quit()
    # Without a terminal there is a hint.
    done = run_amplifier("resume", cwd=project)
    assert (done.code, done.stdout) == (2, "")
    assert "amplifier run --resume ID" in done.stderr


def test_nothing_to_resume_is_said(tmp_path: Path) -> None:
    with Terminal("resume", home=tmp_path / "home", cwd=tmp_path) as terminal:
        terminal.until("No saved sessions in this directory.*amplifier resume --all")
        assert terminal.finish() == 0
