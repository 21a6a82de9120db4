"""Notices on stderr: each retry once, uncut unless stderr is a terminal."""

import json
import os
from pathlib import Path

import pytest

from amplifier_app.runtime.observers.observer import RetryReports
from tests.support.cli import run_amplifier, succeed
from tests.support.plans import mock_plan, module_folder
from tests.support.terminal import Terminal

LONG = "overloaded " + "x" * 300

PROVIDER = f"""
import logging

from amplifier_core import ChatResponse, ProviderInfo, TextBlock

__amplifier_module_type__ = "provider"
logger = logging.getLogger(__name__)


class Backend:
    name = "theirs"

    def __init__(self, hooks):
        self.hooks = hooks

    def get_info(self):
        return ProviderInfo(id="theirs", display_name="Theirs")

    async def list_models(self):
        return []

    async def complete(self, request, **kwargs):
        for attempt in (1, 2):
            cause = f"{{attempt}} {LONG}"
            logger.warning("[PROVIDER] Retry %d/2 for RateLimitError: %s, sleeping 1s", attempt, cause)
            data = {{"provider": "theirs", "attempt": attempt, "max_retries": 2, "delay": 1.0}}
            await self.hooks.emit("provider:retry", {{**data, "error_message": cause}})
        return ChatResponse(content=[TextBlock(text="at last")])

    def parse_tool_calls(self, response):
        return []


async def mount(coordinator, config=None):
    await coordinator.mount("providers", Backend(coordinator.hooks), name="theirs")
"""


@pytest.fixture
def retrying(tmp_path: Path) -> Path:
    source = str(module_folder(tmp_path, PROVIDER, "amplifier_module_provider_theirs"))
    return mock_plan(tmp_path, [], providers=[{"module": "provider-theirs", "source": source}])


def test_a_retry_that_is_logged_and_emitted_is_reported_once(retrying: Path) -> None:
    done = run_amplifier("run", "-f", retrying, "go")
    assert (done.code, done.stdout) == (0, "at last\n"), done.stderr
    assert [done.stderr.count(f"{attempt} {LONG}") for attempt in (1, 2)] == [1, 1]


def test_in_the_event_stream_a_retry_is_one_event(retrying: Path) -> None:
    done = run_amplifier("run", "-f", retrying, "go", "--output", "stream-json")
    events = [json.loads(line) for line in done.stdout.splitlines()]
    assert [event["attempt"] for event in events if event["type"] == "retry"] == [1, 2]


@pytest.mark.parametrize(
    ("options", "is_named"),
    [((), True), (("-q",), False), (("--trust",), False), (("--no-project",), False)],
)
def test_unread_instructions_of_an_untrusted_project_are_named(
    tmp_path: Path, options: tuple[str, ...], is_named: bool
) -> None:
    (tmp_path / "AGENTS.md").write_text("Be terse.")
    plan = mock_plan(tmp_path, ["done"], hooks=["hooks-context-files"])
    done = run_amplifier("run", "-f", plan, *options, "go", cwd=tmp_path)
    named = (
        "amplifier: AGENTS.md of this project: not read until you trust it with 'amplifier trust'\n"
    )
    assert (done.code, done.stdout) == (0, "done\n")
    assert done.stderr.count(named) == is_named, done.stderr


def test_retries_that_only_a_module_logs_are_each_shown() -> None:
    reports = RetryReports()
    assert reports.is_new_log("Retrying: busy")
    assert reports.is_new_log("Retrying: busy")
    assert reports.is_new_log("something else")


def test_a_retry_is_reported_once_whichever_comes_first() -> None:
    reports = RetryReports()
    assert reports.is_new_event({"error_message": "busy"})
    assert not reports.is_new_log("retry 1/2: busy")
    assert reports.is_new_log("retry 2/2: busy")
    assert not reports.is_new_event({"error_message": "busy"})
    assert reports.is_new_event({"error_message": "another"})
    reports.is_muted = True
    assert not reports.is_new_event({"error_message": "a third"})


RETRIES = """
__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    async def emit(event, data):
        await coordinator.hooks.emit("provider:retry", {"error_message": "LONG"})

    coordinator.hooks.register("execution:start", emit, name="retries")
""".replace("LONG", LONG)


def test_notices_are_cut_on_a_terminal_only(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, RETRIES, "amplifier_module_hooks_retries"))
    plan = mock_plan(tmp_path, ["ok"], hooks=[{"module": "hooks-retries", "source": source}])
    piped = run_amplifier("run", "-f", plan, "go")
    assert LONG in piped.stderr
    assert "…" not in piped.stderr
    for screen, cut in (("full", "… retrying"), ("plain", "…; retrying")):
        with Terminal("run", "-f", plan, "go", "--screen", screen) as terminal:
            assert terminal.finish() == 0
            assert cut in " ".join(terminal.shown.split())


def test_the_event_stream_has_tool_errors_uncut(tmp_path: Path) -> None:
    missing = "missing/" * 40
    call = {"name": "read_file", "input": {"file_path": missing}}
    tools = [{"module": "tool-filesystem"}]
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "ok"], tools=tools)
    done = run_amplifier("run", "-f", plan, "go", "--output", "stream-json", cwd=tmp_path)
    events = [json.loads(line) for line in done.stdout.splitlines()]
    [ended] = [event for event in events if event["type"] == "tool_end"]
    assert missing.rstrip("/") in ended["output"]


def test_many_notices_about_a_plan_are_shown_once_until_they_change(tmp_path: Path) -> None:
    keys = ["spawn", "config", "ui", "task"]

    def run(*keys: str) -> list[str]:
        head = "".join(f"{key}: {{}}\n" for key in keys)
        (tmp_path / "many.md").write_text(
            "---\nbundle: {name: many, version: 1.0.0}\nproviders: [provider-mock]\n"
            f"session: {{orchestrator: loop-basic, context: context-simple}}\n{head}---\nHi.\n"
        )
        done = succeed("run", "-f", "many.md", "--no-save", "hi", cwd=tmp_path)
        return [line for line in done.stderr.splitlines() if "plan" in line]

    assert len(run(*keys)) == 4
    again = "amplifier: 4 notices about the plan, as before; list them with: amplifier plan check"
    assert run(*keys) == [f"{again} -f many.md"]
    changed = run(*keys, "hints")
    assert len(changed) == 5
    assert "'hints' in the plan is ignored" in changed[-1]
    checked = run_amplifier("plan", "check", "-f", "many.md", cwd=tmp_path)
    assert checked.stderr.count("in the plan is ignored") == 5
    # Few are shown each time.
    assert run("spawn") == run("spawn")
    home = Path(os.environ["AMPLIFIER_HOME"])
    (home / "notices.json").write_text("{")
    assert len(run(*keys)) == 4


BROKEN = """
import logging

from pydantic import BaseModel, ValidationError

__amplifier_module_type__ = "hook"
logger = logging.getLogger(__name__)


class Entry(BaseModel):
    name: str


async def mount(coordinator, config=None):
    async def on_prompt(event, data):
        try:
            Entry.model_validate({})
        except ValidationError as error:
            logger.warning("cannot read the entry: %s", error)

    coordinator.hooks.register("prompt:submit", on_prompt, name="broken")
"""


def test_a_warning_with_an_error_of_several_lines_is_one_line(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, BROKEN, "amplifier_module_hooks_broken"))
    plan = mock_plan(tmp_path, ["done"], hooks=[{"module": "hooks-broken", "source": source}])
    done = run_amplifier("run", "-f", plan, "go")
    (line,) = (line for line in done.stderr.splitlines() if "cannot read the entry" in line)
    assert "1 validation error for Entry name Field required" in line
