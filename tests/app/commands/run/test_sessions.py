"""Which session `run` resumes, and with which plan."""

import functools
import json
import os
import shlex
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.summary import read_metadata
from tests.support.cli import Finished, run_amplifier, start_amplifier, succeed
from tests.support.plans import held_plan, let_go, mock_plan, module_folder
from tests.support.terminal import ENTER, Terminal
from tests.support.waiting import wait_until


@pytest.fixture
def plan(tmp_path: Path) -> Path:
    return mock_plan(tmp_path, ["ok"])


def to_result(done: Finished) -> dict[str, Any]:
    return json.loads(done.stdout)


def prompts(session_id: str) -> list[str]:
    shown = run_amplifier("session", "show", session_id, "--output", "json")
    messages = json.loads(shown.stdout)["messages"]
    return [message["content"] for message in messages if message["role"] == "user"]


def test_session_creates_and_then_resumes_the_same_id(plan: Path) -> None:
    for prompt in ("one", "two"):
        done = run_amplifier("run", "-f", plan, prompt, "--session", "mine", "--output", "json")
        assert (done.code, to_result(done)["session_id"]) == (0, "mine")
    assert prompts("mine") == ["one", "two"]


def test_a_killed_prompt_counts_and_gives_its_session_a_title(tmp_path: Path) -> None:
    plan = held_plan(tmp_path, ["one", "two"])
    process = start_amplifier("run", "-f", plan, "--session", "mine", "**Find** the fault")
    wait_until(lambda: saved_title("mine"), process=process)
    process.kill()
    process.communicate()
    let_go(tmp_path)
    for count in (1, 2):
        (listed,) = json.loads(run_amplifier("session", "list", "--output", "json").stdout)
        assert (listed["title"], listed["prompts"]) == ("Find the fault", count)
        succeed("run", "--resume", "mine", "and its cause")


def test_only_prompts_of_the_user_are_counted(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["one", "two", "three"], checks=[{"run": "false"}])
    options = ("--session", "mine", "--retries", "1")
    assert run_amplifier("run", "-f", plan, *options, "first").code == 9
    assert [text == "first" for text in prompts("mine")] == [True, False]
    assert SessionStore().read("mine")[0]["prompts"] == 1
    assert run_amplifier("run", "--resume", "mine", "Continue.").code == 9
    assert SessionStore().read("mine")[0]["prompts"] == 1


def saved_title(session_id: str) -> str | None:
    session = SessionStore().get(session_id)
    return None if session is None else read_metadata(session.path).values.get("title")


def test_resume_never_starts_a_new_session(plan: Path) -> None:
    done = run_amplifier("run", "-f", plan, "hi", "--resume", "nope")
    assert (done.code, done.stdout) == (6, "")
    assert "nope" in done.stderr
    assert "session list" in done.stderr


ADDRESS = "https://me:hunter2@127.0.0.1:9/v1"


def plan_with_secrets(folder: Path) -> Path:
    """A plan that contains a key, and a URL with a password."""
    plan = folder / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "instruction: Write [REDACTED] for a key.\n"
        f"providers: [{{module: provider-mock, config: {{replies: [{ADDRESS}]}}}},\n"
        "  {module: provider-anthropic, config: {api_key: sk-in-the-plan, priority: 999}}]\n"
    )
    return plan


def test_without_a_terminal_unsaved_secrets_are_listed_with_their_option(
    tmp_path: Path,
) -> None:
    plan = plan_with_secrets(tmp_path)
    begun = succeed("run", "-f", plan, "one", "--session", "s")
    saved = [path.read_text() for path in (begun.home / "sessions" / "s").iterdir()]
    assert not [text for text in saved if "sk-in-the-plan" in text]
    done = run_amplifier("run", "two", "--resume", "s")
    assert (done.code, done.stdout) == (78, "")
    key, reply = (
        "providers.provider-anthropic.config.api_key",
        "providers.provider-mock.config.replies.0",
    )
    assert f'--set {key}="$SECRET"' in done.stderr
    partly = run_amplifier("run", "two", "--resume", "s", "--set", f"{key}=sk-again")
    assert partly.code == 78
    assert (f"--set {key}" in partly.stderr, f"--set {reply}" in partly.stderr) == (False, True)
    for more in (["--set", f"{key}=sk-again", "--set", f"{reply}=fine"], ["-f", str(plan)]):
        succeed("run", "more", "--resume", "s", *more)
    assert prompts("s") == ["one", "more", "more"]


def test_on_a_terminal_unsaved_secrets_are_prompted_for(tmp_path: Path) -> None:
    run_amplifier("run", "-f", plan_with_secrets(tmp_path), "one", "--session", "s")
    with Terminal("run", "two", "--resume", "s", cwd=tmp_path) as terminal:
        terminal.until(r"replies.0, which was https://\[REDACTED\]@127.0.0.1:9/v1")
        terminal.enter("https://again@x/", "provider-anthropic.config.api_key")
        terminal.type("sk-typed" + ENTER)
        assert terminal.finish() == 0
        assert "sk-typed" not in terminal.raw
    assert prompts("s") == ["one", "two"]
    home = Path(os.environ["AMPLIFIER_HOME"])
    assert "sk-typed" not in (home / "sessions" / "s" / "plan.yaml").read_text()


def test_an_empty_secret_leaves_the_session_unchanged(tmp_path: Path) -> None:
    run_amplifier("run", "-f", plan_with_secrets(tmp_path), "one", "--session", "s")
    with Terminal("run", "two", "--resume", "s", cwd=tmp_path) as terminal:
        terminal.until("input is hidden")
        terminal.type(ENTER)
        assert terminal.finish() == 78
    assert prompts("s") == ["one"]


@pytest.mark.parametrize(("file", "how"), [("transcript.jsonl", "empty"), ("plan.yaml", "missing")])
def test_a_session_with_a_missing_file_is_refused(
    tmp_path: Path, plan: Path, file: str, how: str
) -> None:
    home = run_amplifier("run", "-f", plan, "one", "--session", "s", cwd=tmp_path).home
    lost = home / "sessions" / "s" / file
    lost.unlink()
    if how == "empty":
        lost.touch()
    for options in (["--resume", "s"], ["--session", "s"], ["--continue"]):
        done = run_amplifier("run", "two", *options, cwd=tmp_path)
        assert (done.code, done.stdout) == (6, ""), options
        assert f"is {how}" in done.stderr
        assert str(lost) in done.stderr
    with Terminal("run", "--resume", "s", cwd=tmp_path) as terminal:
        assert terminal.finish() == 6
    shown = run_amplifier("session", "show", "s")
    assert shown.code == (6 if file == "transcript.jsonl" else 0)
    with_plan = run_amplifier("run", "two", "--resume", "s", "-f", plan)
    assert with_plan.code == shown.code


def test_continue_resumes_the_last_session_of_this_directory(tmp_path: Path, plan: Path) -> None:
    here, there = tmp_path / "here", tmp_path / "there"
    here.mkdir()
    there.mkdir()
    assert run_amplifier("run", "--continue", "hi", cwd=here).code == 6
    run_amplifier("run", "-f", plan, "in here", "--session", "a", cwd=here)
    run_amplifier("run", "-f", plan, "over there", "--session", "b", cwd=there)
    done = run_amplifier("run", "--continue", "more", "--output", "json", cwd=here)
    assert to_result(done)["session_id"] == "a"
    assert prompts("a") == ["in here", "more"]


def test_resuming_uses_the_saved_plan(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("content")
    replies = [{"tool_calls": [{"name": "read_file", "input": {"path": "a.txt"}}]}, "read it"]
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-filesystem"}])
    run_amplifier("run", "-f", plan, "one", "--session", "s", cwd=tmp_path)
    plan.unlink()
    done = run_amplifier(
        "run", "two", "--resume", "s", "-m", "other-model", "--output", "stream-json", cwd=tmp_path
    )
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.code == 0, done.stderr
    assert (events[0]["model"], "read_file" in events[0]["tools"]) == ("other-model", True)
    assert events[-1]["response"] == "read it"


def test_no_save_saves_nothing(plan: Path) -> None:
    done = run_amplifier("run", "-f", plan, "hi", "--no-save")
    assert (done.code, done.stdout) == (0, "ok\n")
    assert not (done.home / "sessions").exists()


@pytest.mark.parametrize(
    ("prompt", "said"),
    [
        ("/help", "/help is a chat command; a single prompt cannot run it"),
        ("/undo force", "/undo is a chat command"),
        ("/nosuch x", "unknown command /nosuch"),
    ],
)
def test_a_slash_command_is_not_sent_as_a_prompt(plan: Path, prompt: str, said: str) -> None:
    done = run_amplifier("run", "-f", plan, prompt)
    assert (done.code, done.stdout) == (2, "")
    assert said in done.stderr
    assert "To send the text to the model, start it with a space." in done.stderr
    assert run_amplifier("run", "-f", plan, stdin=prompt + "\n").code == 2
    succeed("run", "-f", plan, " " + prompt)


def test_continue_is_short_for_run_with_the_option(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"})
    first = run_amplifier("run", "-f", plan, "one", "--output", "json", cwd=tmp_path)
    again = run_amplifier("continue", "-f", plan, "two", "--output", "json", cwd=tmp_path)
    ids = [json.loads(done.stdout)["session_id"] for done in (first, again)]
    assert ids[0] == ids[1]
    nothing = run_amplifier("continue", "two", cwd=tmp_path.parent)
    assert (nothing.code, nothing.stdout) == (6, "")


def test_the_command_to_resume_works_as_it_is_printed(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [{"text": "the first half", "finish_reason": "length"}])
    cut = run_amplifier("run", "-f", plan, "--session", "s", "go")
    assert cut.code == 7
    hint = next(line for line in cut.stderr.splitlines() if "Resume with: " in line)
    _, *words = shlex.split(hint.partition("Resume with: ")[2])
    assert run_amplifier(*words).code == 7
    assert prompts("s") == ["go", "Continue."]


NAMING_HOOK = '''
"""Names sessions as a published hook does: it writes back all of the metadata as it read it."""
__amplifier_module_type__ = "hook"

import functools
import json
from pathlib import Path


async def mount(coordinator, config=None):
    read = {}

    def prompt_complete(event, data):
        if not hasattr(coordinator, "session_dir"):
            print("no folder")
            return
        folder = Path(coordinator.session_dir)
        metadata = json.loads((folder / "metadata.json").read_text())
        if metadata.get("turn_count", 0) + 1 >= 2 and metadata.get("name") is None:
            read[folder / "metadata.json"] = metadata

    def session_end(event, data):
        for file, metadata in read.items():
            file.with_suffix(".new").write_text(json.dumps({**metadata, "name": config["name"]}))
            file.with_suffix(".new").replace(file)

    coordinator.hooks.register("prompt:complete", prompt_complete, name="naming")
    coordinator.hooks.register("session:end", session_end, name="naming")
'''


def test_a_published_hook_names_a_session_that_has_no_name(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, NAMING_HOOK, "amplifier_module_hooks_naming"))
    hook = {"module": "hooks-naming", "source": source, "config": {"name": "Fix the\nparser"}}
    mock_plan(tmp_path, ["ok"], hooks=[hook])
    home = tmp_path / "home"

    def run(*arguments: str) -> str:
        done = succeed(*arguments, home=home, cwd=tmp_path)
        return done.stdout + done.stderr

    file = home / "sessions" / "s" / "metadata.json"
    run("run", "-f", "plan.yaml", "--session", "s", "first prompt")
    assert "first prompt" in run("session", "list")
    run("run", "-f", "plan.yaml", "--session", "s", "second prompt")
    metadata = json.loads(file.read_text())
    # What this process has counted since the hook read the file is kept.
    assert (metadata["prompts"], metadata["turn_count"], metadata["name"]) == (
        2,
        2,
        "Fix the\nparser",
    )
    assert metadata["spent"]["steps"] == 2
    assert file.stat().st_mode & 0o777 == 0o600
    assert "Fix the parser" in run("session", "list")
    run("session", "rename", "s", "My own title")
    run("run", "-f", "plan.yaml", "--session", "s", "third prompt")
    assert "My own title" in run("session", "list")
    run("run", "-f", "plan.yaml", "--session", "renamed", "first prompt")
    run("session", "rename", "renamed", "Named by me")
    run("run", "-f", "plan.yaml", "--session", "renamed", "second prompt")
    assert "Named by me" in run("session", "list")
    assert "no folder" in run("run", "-f", "plan.yaml", "--no-save", "prompt")


def test_a_resumed_session_can_use_a_provider_that_its_plan_lacks(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["from the plan"])
    home = Path(os.environ["AMPLIFIER_HOME"])
    home.mkdir(parents=True, exist_ok=True)
    other = {"module": "provider-mock", "instance_id": "other", "config": {"replies": ["hello"]}}
    (home / "settings.yaml").write_text(json.dumps({"providers": [other]}))
    run = functools.partial(run_amplifier, cwd=tmp_path)
    assert run("run", "-f", plan, "one", "--session", "s").code == 0
    refused = run("run", "-f", plan, "one", "-p", "other")
    assert (refused.code, "the plan has no provider 'other'" in refused.stderr) == (2, True)
    added = run("run", "two", "--continue", "-p", "other")
    assert (added.code, added.stdout) == (0, "hello\n"), added.stderr
    assert "added other, as the plan does not have it" in added.stderr
    assert "provider: other (was mock)" in added.stderr
    kept = run("run", "three", "--continue")
    assert (kept.code, kept.stdout) == (0, "hello\n"), kept.stderr
    back = run("run", "four", "--continue", "-p", "mock")
    assert (back.code, back.stdout) == (0, "from the plan\n"), back.stderr
    unknown = run("run", "five", "--continue", "-p", "othr")
    assert (unknown.code, "'othr' is unknown" in unknown.stderr) == (2, True)
    forked = run("run", "six", "--fork", "s", "-p", "other")
    assert (forked.code, forked.stdout) == (0, "hello\n"), forked.stderr
    assert prompts("s") == ["one", "two", "three", "four"]
