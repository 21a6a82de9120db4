"""`amplifier session cache`: which byte kept a request from using the cache, and what that cost."""

import asyncio
import hashlib
import json
from collections.abc import Callable
from dataclasses import replace
from decimal import Decimal
from pathlib import Path
from typing import Any

import yaml

from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.fixtures import StartLLM
from tests.support.llm_server import Reply, Request, ToolCall, Usage
from tests.support.plans import mock_plan, module_folder

HOOK = """
from pathlib import Path

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    def on_request(event, data):
        messages = data["messages"]
        {body}
        return {{"action": "modify", "data": {{**data, "messages": messages}}}}

    coordinator.hooks.register("provider:request", on_request, name="planted-{name}")
"""

STAMP = """
        if Path("stamp.txt").exists():
            stamp = {"role": "system", "content": Path("stamp.txt").read_text()}
            messages = [stamp, *messages]
"""
REREAD = """
        rules = Path("AGENTS.md").read_text().splitlines()[1]
        messages = [
            {**one, "content": str(one["content"]).replace("Use tabs.", rules)}
            if "<context-file " in str(one["content"]) else one
            for one in messages
        ]
"""
FILL = """
        name = Path("name.txt").read_text() if Path("name.txt").exists() else "NAME"
        messages = [
            {**one, "content": one["content"].replace("NAME", name)}
            if one["role"] == "system" else one
            for one in messages
        ]
"""
LATE = """
        tools = coordinator.get("tools")
        if Path("late.txt").exists() and "late" not in tools:
            tools["late"] = Late()
"""
LATE_TOOL = """

class Late:
    name = "late"
    description = "Comes late."
    input_schema = {"type": "object", "properties": {}}
"""
CLOCK = """
from pathlib import Path

__amplifier_module_type__ = "tool"


class Clock:
    name = "clock"
    input_schema = {"type": "object", "properties": {}}

    @property
    def description(self):
        now = Path("clock.txt").read_text() if Path("clock.txt").exists() else "12:00:01"
        return f"It is {now}."

    async def execute(self, input):
        return None


async def mount(coordinator, config=None):
    await coordinator.mount("tools", Clock(), name="clock")
"""

PLAN = """\
session: {orchestrator: loop-streaming, context: context-simple}
instruction: |
  You are careful.
  Your name is NAME.
tools:
  - module: tool-filesystem
  - module: tool-clock
    source: ./tool-clock
hooks:
  - module: hooks-context-files
    config: {project: true}
  - module: hooks-status
  - module: hooks-stamp
    source: ./amplifier-module-hooks-stamp
  - module: hooks-reread
    source: ./amplifier-module-hooks-reread
  - module: hooks-late
    source: ./amplifier-module-hooks-late
  - module: hooks-fill
    source: ./amplifier-module-hooks-fill
"""

WRITES: list[tuple[str, str, str]] = [
    ("notes.txt", "x", ""),
    ("stamp.txt", "Today is 2026-11-27.", "hook planted-stamp (plan.yaml:13)"),
    ("stamp.txt", "Today is 2026-11-28.", "hook planted-stamp (plan.yaml:13), a time"),
    ("clock.txt", "12:00:02", "tool clock (plan.yaml:7), a time"),
    # A tool that is mounted during a request is in the next one.
    ("late.txt", "x", ""),
    ("notes.txt", "y", "tool late added (plan.yaml:17)"),
    (
        "AGENTS.md",
        "# Rules\nUse four spaces.\n",
        "instruction file ({work}/AGENTS.md:2), by planted-reread (plan.yaml:15)",
    ),
    ("name.txt", "Ada", "instruction (plan.yaml:4), by planted-fill (plan.yaml:19)"),
]
"""Files with what is written to them, and the origin of the break in the next request, if there is one."""


class PromptCache:
    """The prompt cache of the Messages API: prefixes of blocks, up to marked ones."""

    def __init__(self) -> None:
        self._entries: set[str] = set()

    def use(self, body: dict[str, Any]) -> Usage:
        """Return the usage that the service would report for a request."""
        blocks = [*body.get("tools", ()), *body.get("system", ())]
        for message in body["messages"]:
            blocks += [{"role": message["role"], **block} for block in message["content"]]
        digest, size, read, marked = hashlib.sha256(), 0, 0, 0
        written: list[str] = []
        for block in blocks:
            is_marked = block.pop("cache_control", None) is not None
            text = json.dumps(block)
            digest.update(text.encode())
            size += len(text) // 4
            if digest.hexdigest() in self._entries:
                read = size
            if is_marked:
                marked = size
                written.append(digest.hexdigest())
        self._entries |= set(written)
        return Usage(size - marked, 10, cache_read=read, cache_creation=marked - read)


def write_planted(folder: Path, provider: dict[str, Any]) -> None:
    """A plan with modules that break the cache as soon as there are certain files."""
    for name, body in (("stamp", STAMP), ("reread", REREAD), ("late", LATE), ("fill", FILL)):
        code = HOOK.format(body=body.strip(), name=name) + LATE_TOOL
        module_folder(folder, code, f"amplifier_module_hooks_{name}")
    module_folder(folder, CLOCK, "amplifier_module_tool_clock").rename(folder / "tool-clock")
    (folder / "AGENTS.md").write_text(f"# Rules\nUse tabs.\n{'Be thorough. ' * 4800}\n")
    text = PLAN + yaml.safe_dump({"providers": [provider]})
    (folder / "plan.yaml").write_text(text)


def amplifier(folder: Path, *words: str) -> Finished:
    finished = succeed(*words, cwd=folder, home=folder / "home")
    return finished


def read_report(folder: Path) -> dict[str, Any]:
    return json.loads(amplifier(folder, "session", "cache", "s", "--output", "json").stdout)


async def run_planted(
    folder: Path, llm_server: StartLLM, rename: Callable[[str], str]
) -> dict[str, Any]:
    """The report of a run that writes the files one by one."""
    folder.mkdir()
    cache = PromptCache()

    def answer(reply: Reply) -> Callable[[Request], Reply]:
        return lambda request: replace(reply, usage=cache.use(request.body))

    calls = [
        ToolCall("write_file", {"file_path": rename(name), "content": text})
        for name, text, _ in WRITES
    ]
    replies = [Reply(tool_calls=[call]) for call in calls]
    server = await llm_server([answer(reply) for reply in (Reply("Hello."), *replies, Reply("ok"))])
    config = {
        "base_url": server.base_url,
        "api_key": "k",
        "model": "claude-sonnet-4-5",
        "prices": {"input": 3, "output": 15, "cache_read": 0.3, "cache_write": 3.75},
    }
    write_planted(folder, {"module": "provider-anthropic", "config": config})
    options = "--approve", "allow", "--trust"
    plan = folder / "plan.yaml"
    await asyncio.to_thread(run, folder, plan, *options, "Hi")
    await asyncio.to_thread(run, folder, plan, *options, "Go on.")
    return await asyncio.to_thread(read_report, folder)


async def test_planted_breaks_are_named_and_cost_what_the_session_cost_more(
    tmp_path: Path, llm_server: StartLLM
) -> None:
    planted, clean = tmp_path / "planted", tmp_path / "clean"
    report = await run_planted(planted, llm_server, lambda name: name)
    found = [
        each["difference"]["origin"] if each["difference"]["is_break"] else ""
        for each in report["requests"][2:]
    ]
    assert found == [origin.format(work=planted) for _, _, origin in WRITES]
    assert report["breaks"] == 6

    without = await run_planted(clean, llm_server, lambda name: f"{name}.bak")
    assert without["breaks"] == 0
    assert Decimal(without["miss_usd"]) == 0
    more = Decimal(report["total_usd"]) - Decimal(without["total_usd"])
    assert more > Decimal("0.20")
    assert abs(more - Decimal(report["miss_usd"])) < Decimal("0.005")

    costs = amplifier(planted, "session", "cost", "s", "--output", "json")
    assert json.loads(costs.stdout)["total_usd"] == report["total_usd"]
    shown = amplifier(planted, "session", "cache", "s").stdout
    lines = "a time\n  - Today is 2026-11-27.\n  + Today is 2026-11-28.\n"
    assert f"hook planted-stamp (plan.yaml:13), {lines}" in shown
    assert f"${report['miss_usd']}" in shown
    spent = sum(Decimal(each["cost_usd"]) for each in report["requests"])
    assert round(spent, 6) == Decimal(report["total_usd"])


def run(folder: Path, plan: Path, *words: str) -> None:
    """Begin or continue the only session."""
    amplifier(folder, "run", "-f", plan.name, "--session", "s", *words)


def run_and_report(folder: Path, plan: Path, *words: str) -> list[dict[str, Any]]:
    """The requests of the only session after another run of it."""
    run(folder, plan, *words)
    return read_report(folder)["requests"]


def test_a_skill_that_changed_between_runs_is_named(tmp_path: Path) -> None:
    skill = tmp_path / "skills" / "rhyme" / "SKILL.md"
    skill.parent.mkdir(parents=True)
    skill.write_text("---\nname: rhyme\ndescription: Finds rhymes.\n---\nSing.\n")
    tools = [{"module": "tool-skills", "config": {"paths": ["skills"]}}]
    plan = mock_plan(tmp_path, [], tools=tools, instruction="Be brief.")
    run(tmp_path, plan, "Hi")
    requests = run_and_report(tmp_path, plan, "Go on.")
    assert requests[1]["difference"] is None
    skill.write_text("---\nname: rhyme\ndescription: Finds rhymes fast.\n---\nSing.\n")
    difference = run_and_report(tmp_path, plan, "Go on.")[2]["difference"]
    assert difference["origin"] == f"skill rhyme ({skill}:3)"
    # Only hashes of the earlier request are stored.
    assert not difference["is_exact"]
    assert 0 < difference["byte"] < requests[1]["bytes"]


def test_another_plan_alone_breaks_nothing(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], instruction="Be brief.")
    run(tmp_path, plan, "Hi")
    other = mock_plan(tmp_path, [], name="other.yaml", instruction="Be thorough.")
    # The conversation keeps its first message.
    assert run_and_report(tmp_path, other, "Go on.")[1]["difference"] is None


def test_a_lost_record_hides_what_it_shared(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], instruction="Be brief.")
    for _ in range(3):
        run(tmp_path, plan, "Hi")
    log = tmp_path / "home" / "sessions" / "s" / "requests.jsonl"
    first, _, third = log.read_text().splitlines(keepends=True)
    log.write_text(first + "{\n" + third)
    requests = run_and_report(tmp_path, plan, "Hi")
    assert [each["request"] for each in requests] == [1, 3, 4]
    assert [each["difference"] for each in requests] == [None] * 3
    assert requests[2]["same_bytes"] is None


def test_another_model_has_another_cache(tmp_path: Path) -> None:
    # Every request is new to the cache: 10,000 tokens that are 5 times as dear as those read from it.
    usage = {"input_tokens": 10_000, "output_tokens": 1, "cache_write_tokens": 10_000}
    usage |= {"total_tokens": 10_001, "cost_usd": "0.025"}
    plan = mock_plan(tmp_path, [{"text": "ok", "usage": usage}])
    run(tmp_path, plan, "Hi")
    run(tmp_path, plan, "-m", "other", "Hi")
    requests = run_and_report(tmp_path, plan, "-m", "mock-model", "Hi")
    differences = [each["difference"] for each in requests]
    assert differences[1]["origin"] == "model mock-model → other (--model)"
    assert requests[1]["missed_tokens"] == 10_000
    assert 0.01 < float(requests[1]["miss_usd"]) < 0.025
    assert requests[1]["same_bytes"] == 0
    # The earlier cache of the first model still serves.
    assert differences[2] is None
    assert requests[2]["same_bytes"] == requests[0]["bytes"]


def test_a_hook_that_adds_no_message_any_more_is_named(tmp_path: Path) -> None:
    code = HOOK.format(body=STAMP.strip(), name="stamp")
    module_folder(tmp_path, code, "amplifier_module_hooks_stamp")
    hooks = [{"module": "hooks-stamp", "source": "./amplifier-module-hooks-stamp"}]
    plan = mock_plan(tmp_path, [], hooks=hooks)
    (tmp_path / "stamp.txt").write_text("Be quick.")
    run(tmp_path, plan, "Hi")
    (tmp_path / "stamp.txt").unlink()
    difference = run_and_report(tmp_path, plan, "Hi")[1]["difference"]
    assert difference["origin"].startswith("hook planted-stamp removed (plan.yaml:")


def test_a_compacted_conversation_is_named_with_its_message(tmp_path: Path) -> None:
    (tmp_path / "big.txt").write_text(f"{'x' * 59}\n" * 80)
    replies: list[Any] = [
        {"tool_calls": [{"name": "read_file", "input": {"file_path": "big.txt", "offset": n}}]}
        for n in (1, 2, 3)
    ]
    mock = {"context_window": 6000, "max_output_tokens": 1000}
    plan = mock_plan(tmp_path, [*replies, "ok"], mock=mock, tools=[{"module": "tool-filesystem"}])
    difference = run_and_report(tmp_path, plan, "Hi")[3]["difference"]
    assert difference["is_break"]
    assert difference["origin"].startswith("compaction at message 2 (plan.yaml:")


def test_texts_for_one_request_are_no_breaks(tmp_path: Path) -> None:
    call = {"tool_calls": [{"name": "list_directory", "input": {"path": "."}}]}
    append = HOOK.replace('"action": "modify"', '"action": "inject_context"').format(
        body="", name="append"
    )
    append = append.replace(
        '"data": {**data, "messages": messages}',
        '"context_injection": "Be quick.", "ephemeral": True, "append_to_last_tool_result": True',
    )
    module_folder(tmp_path, append, "amplifier_module_hooks_append")
    hooks = [
        {"module": "hooks-append", "source": "./amplifier-module-hooks-append"},
        {"module": "hooks-status"},
    ]
    tools = [{"module": "tool-filesystem"}]
    plan = mock_plan(tmp_path, [call, call, "ok"], tools=tools, hooks=hooks)
    differences = [each["difference"] for each in run_and_report(tmp_path, plan, "Hi")]
    assert [difference["is_break"] for difference in differences[1:]] == [False, False]
    origins = [difference["origin"].partition(" (plan.yaml:")[0] for difference in differences[1:]]
    assert origins == ["hook planted-append", "hook planted-append"]


def test_requests_of_agents_are_listed_with_their_session(tmp_path: Path) -> None:
    replies: list[Any] = [
        {"tool_calls": [{"name": "task", "input": {"agent": "helper", "instruction": "Help."}}]},
        "ok",
    ]
    helper = {
        "description": "Helps",
        "providers": [{"module": "provider-mock", "config": {"replies": ["ok"]}}],
    }
    plan = mock_plan(tmp_path, replies, tools=[{"module": "tool-task"}], agents={"helper": helper})
    amplifier(tmp_path, "run", "-f", plan.name, "--session", "s", "--approve", "allow", "Hi")
    shown = amplifier(tmp_path, "session", "cache", "s", "--output", "json").stdout
    sessions = [each["session"].split()[0] for each in json.loads(shown)["requests"]]
    assert sessions == ["main", "main", "helper"]
    assert "helper" in amplifier(tmp_path, "session", "cache", "s").stdout


def test_a_session_without_a_log_is_an_error(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [])
    run(tmp_path, plan, "Hi")
    log = tmp_path / "home" / "sessions" / "s" / "requests.jsonl"
    for content in (None, "", "{\n\0"):
        log.unlink()
        if content is not None:
            log.write_text(content)
        finished = run_amplifier("session", "cache", "s", cwd=tmp_path, home=tmp_path / "home")
        assert finished.code == 6
        assert "session s has no log of its requests" in finished.stderr
        # A resumed session begins a new one.
        assert [each["difference"] for each in run_and_report(tmp_path, plan, "Hi")] == [None]


def test_secrets_are_not_in_the_log(tmp_path: Path) -> None:
    module_folder(
        tmp_path,
        HOOK.format(body=STAMP.strip(), name="stamp"),
        "amplifier_module_hooks_stamp",
    )
    secret = "sk-ant-api03-" + "Zk3vQ9xW" * 11 + "-AAAAAAAA"
    replies: list[Any] = [
        {
            "tool_calls": [
                {
                    "name": "write_file",
                    "input": {"file_path": "stamp.txt", "content": f"{n} {secret}"},
                }
            ]
        }
        for n in range(2)
    ]
    hooks = [{"module": "hooks-stamp", "source": "./amplifier-module-hooks-stamp"}]
    plan = mock_plan(tmp_path, [*replies, "ok"], tools=[{"module": "tool-filesystem"}], hooks=hooks)
    requests = run_and_report(tmp_path, plan, "--approve", "allow", "Hi")
    assert requests[2]["difference"]["before"].startswith("0 [REDACTED")
    log = tmp_path / "home" / "sessions" / "s" / "requests.jsonl"
    assert "Zk3vQ9xW" not in log.read_text()
    assert log.stat().st_mode & 0o777 == 0o600


def test_a_request_is_sent_even_if_it_cannot_be_recorded(tmp_path: Path) -> None:
    code = CLOCK.replace(
        "    async def execute",
        "    @property\n    def description_parts(self):\n        raise RuntimeError('broken')\n\n    async def execute",
    )
    module_folder(tmp_path, code, "amplifier_module_tool_clock")
    tools = [{"module": "tool-clock", "source": "./amplifier-module-tool-clock"}]
    plan = mock_plan(tmp_path, ["ok"], tools=tools)
    finished = amplifier(tmp_path, "run", "-f", plan.name, "Hi")
    assert finished.stdout.strip() == "ok"
    assert "A request cannot be compared with the one before it" in finished.stderr
    assert "broken" in finished.stderr
