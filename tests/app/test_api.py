"""`amplifier_app.api`: plans run from Python, and the examples of its page run as they are."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import subprocess
from asyncio import unix_events
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Annotated, Any, get_args, get_type_hints

import pytest
import yaml
from pydantic import AfterValidator, TypeAdapter

from amplifier_app import api
from amplifier_app.render import event_types
from amplifier_app.sessions.store import SessionStore
from amplifier_batch.record.folder import is_running
from tests.support.cli import child_environment, run_amplifier, run_python, succeed
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall
from tests.support.plans import held_plan, mock_plan, module_folder
from tests.support.waiting import eventually
from tests.support.warm_interpreter import WarmInterpreter, WarmModule

EXAMPLES = Path(__file__).parents[2] / "examples" / "library"


async def test_an_answer_has_the_text_the_ending_and_the_whole_result() -> None:
    answer = await api.run(api.load_plan("mock"), "hello")
    assert answer.is_ok
    assert (answer.text, answer.outcome, answer.exit_code, answer.error) == (
        "You said: hello",
        "ok",
        0,
        None,
    )
    printed = run_amplifier("run", "--profile", "mock", "--output", "json", "hello")
    assert answer.result["sandbox"] == json.loads(printed.stdout)["sandbox"] is not None
    shown = run_amplifier("session", "show", answer.result["session_id"])
    assert "You said: hello" in shown.stdout


async def test_a_session_keeps_its_conversation_and_can_be_resumed(tmp_path: Path) -> None:
    plan = api.load_plan(mock_plan(tmp_path, ["one", "two"]))
    async with api.open_session(plan, session_id="mine") as session:
        assert (await session.run("first")).text == "one"
        events = [event async for event in session.stream("second")]
    assert [event["delta"] for event in events if event["type"] == "text"] == ["two"]
    last = events[-1]
    assert last["type"] == "result"
    assert last["response"] == "two"
    async with api.open_session(plan, session_id="mine") as session:
        await session.run("third")
    shown = run_amplifier("session", "show", "mine").stdout
    assert [word for word in ("first", "second", "third") if word not in shown] == []


FIELDS: dict[str, dict[str, Any]] = {
    kind: get_type_hints(event)
    for event in get_args(event_types.Event)
    for kind in get_args(get_type_hints(event)["type"])
}


async def test_events_have_the_types_that_are_documented(tmp_path: Path) -> None:
    call = {"name": "task", "input": {"agent": "a", "instruction": "go"}}
    replies = [{"text": "now", "tool_calls": [call]}, "one", "two"]
    agents = {"a": {"description": "Does it", "tools": []}}
    tools = [{"module": "tool-task"}]
    plan = api.load_plan(mock_plan(tmp_path, replies, tools=tools, agents=agents))
    events: list[api.Event] = []
    async with api.open_session(plan, save=False) as session:
        answer = await session.run("first", on_event=events.append)
        events += [event async for event in session.stream("second")]
    assert answer.text == "one", answer.error
    kinds = {event["type"] for event in events}
    assert {"request", "text", "tool_start", "tool_end", "sub_session_start", "result"} < kinds
    for event in events:
        hints = FIELDS[event["type"]]
        assert event.keys() == hints.keys()
        for name in hints.keys() - {"cost", "error"}:
            TypeAdapter(hints[name]).validate_python(dict(event)[name], strict=True)


def test_the_types_of_events_are_those_of_the_schema() -> None:
    definitions = json.loads(run_amplifier("schema", "events").stdout)["$defs"]
    result = json.loads(run_amplifier("schema", "result").stdout)
    elsewhere = {
        "result": result,
        "check": result["$defs"]["check"],
        "sub_session_end": result["$defs"]["sub_session"],
    }
    for kind, fields in FIELDS.items():
        name = "text" if kind == "thinking" else kind
        properties = definitions[name]["properties"] | elsewhere.get(name, {}).get("properties", {})
        assert fields.keys() == properties.keys(), kind
    # Written when the session opens, before its first prompt.
    assert definitions.keys() - FIELDS.keys() == {"session"}


async def test_errors_of_a_prompt_are_in_the_answer(tmp_path: Path) -> None:
    failing = mock_plan(tmp_path, [{"error": {"type": "AuthenticationError"}}])
    answer = await api.run(api.load_plan(failing), "hello", save=False)
    assert not answer.is_ok
    assert (answer.outcome, answer.exit_code) == ("authentication", 4)
    assert answer.error


async def test_a_schema_gives_data(tmp_path: Path) -> None:
    plan = api.load_plan(mock_plan(tmp_path, ["none", '{"n": 3}']))
    schema = {"type": "object", "required": ["n"]}
    answer = await api.run(plan, "hello", schema=schema, save=False)
    assert answer.data == {"n": 3}


async def test_a_prompt_that_is_stopped_or_left_ends_and_the_session_continues(
    tmp_path: Path,
) -> None:
    mock = {"chunk_size": 2, "chunk_delay": 0.05}
    slow = mock_plan(tmp_path, ["a " * 500, "b " * 500, "third"], mock=mock)
    async with api.open_session(api.load_plan(slow), save=False) as session:
        async for event in session.stream("first"):
            if event["type"] == "text":
                session.stop()
            if event["type"] == "result":
                assert event["outcome"] == "interrupted"
                assert len(event["response"]) < 500
        left = session.stream("second")
        async for event in left:
            if event["type"] == "text":
                break
        await left.aclose()
        assert (await session.run("third")).text == "third"


async def test_a_client_that_disconnects_leaves_a_session_that_was_cleaned_up(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Of a real web server, which cancels each wait of the request's task again."""
    uvicorn = pytest.importorskip("uvicorn")
    responses = pytest.importorskip("starlette.responses")
    module_folder(tmp_path, CLEANS_UP, "amplifier_module_hooks_clean")
    cleaned = tmp_path / "cleaned.txt"
    source = "./amplifier-module-hooks-clean"
    hook = {"module": "hooks-clean", "source": source, "config": {"file": str(cleaned)}}
    plan = api.load_plan(held_plan(tmp_path, ["never"], hooks=[hook]))
    sessions: list[str] = []

    async def events() -> AsyncGenerator[str]:
        async with api.open_session(plan) as session:
            sessions.append(session.id)
            yield "opened\n"
            async for event in session.stream("hello"):
                yield f"{event['type']}\n"

    async def application(scope: Any, receive: Any, send: Any) -> None:
        await responses.StreamingResponse(events())(scope, receive, send)

    config = uvicorn.Config(application, port=0, lifespan="off", log_config=None)
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    await eventually(lambda: server.started)
    port = server.servers[0].sockets[0].getsockname()[1]

    async def disconnect() -> None:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")
        await reader.readuntil(b"opened\n")
        writer.close()

    await asyncio.gather(*(disconnect() for _ in range(10)))
    await eventually(lambda: cleaned.exists() and len(cleaned.read_text().split()) == 10)
    server.should_exit = True
    await serving
    assert [record.message for record in caplog.records if "stopped" in record.message] == []
    # Each can be opened again: nothing holds it any more.
    for session_id in sessions:
        async with api.open_session(plan, session_id=session_id):
            pass


CLEANS_UP = """
import asyncio, pathlib

__amplifier_module_type__ = "hook"


async def mount(coordinator, config=None):
    async def cleanup():
        for _ in range(5):
            await asyncio.sleep(0.01)
        with pathlib.Path(config["file"]).open("a") as file:
            file.write("cleaned\\n")

    async def nothing(event, data):
        pass

    coordinator.hooks.register("prompt:submit", nothing, name="clean")
    coordinator.register_cleanup(cleanup)
"""


@pytest.mark.usefixtures("key")
async def test_sessions_in_two_folders_work_at_once_each_in_its_own(tmp_path: Path) -> None:
    for name in ("trusted", "other"):
        project = tmp_path / name
        (project / ".amplifier").mkdir(parents=True)
        (project / "AGENTS.md").write_text(f"The rule of {name}.")
        (project / "name.txt").write_text(f"content of {name}")
    succeed("trust", "--yes", cwd=tmp_path / "trusted")
    both = asyncio.Barrier(2)

    async def work(request: Request) -> Reply:
        if any(message["role"] == "assistant" for message in request.body["messages"]):
            return Reply("done")
        await both.wait()
        write = ToolCall("bash", {"command": "pwd > here.txt; cat name.txt > copy.txt"})
        return Reply(tool_calls=[write, ToolCall("read_file", {"file_path": "name.txt"})])

    async with ScriptedLLM([work], repeat_last=True) as server:
        plan = api.load_plan(anthropic_plan(tmp_path, server))
        before = os.getcwd()
        names = ("trusted", "other")
        answers = await asyncio.gather(
            *(api.run(plan, "go", workdir=tmp_path / name, approve="allow") for name in names)
        )
        assert [answer.text for answer in answers] == ["done", "done"]
        assert os.getcwd() == before
        texts = [json.dumps(request.body) for request in server.completions]
    for name, answer in zip(names, answers, strict=True):
        project = tmp_path / name
        assert (project / "here.txt").read_text() == f"{project}\n"
        assert (project / "copy.txt").read_text() == f"content of {name}"
        assert any(f"content of {name}" in text for text in texts)
        saved = SessionStore().find(answer.result["session_id"])
        assert saved.metadata["project"] == str(project)
        # Only a folder that the user trusts gives instructions.
        assert any(f"The rule of {name}" in text for text in texts) is (name == "trusted")


async def test_a_plan_that_a_function_runs_works_in_the_folder_of_the_process(
    tmp_path: Path,
) -> None:
    place = tmp_path / "place"
    place.mkdir()
    link = tmp_path / "link"
    link.symlink_to(place)
    inner = api.load_plan("mock")

    async def ask() -> str:
        """Ask another plan."""
        return (await api.run(inner, "hello")).result["session_id"]

    replies = [{"tool_calls": [{"name": "ask", "input": {}}]}, "done"]
    plan = api.load_plan(mock_plan(tmp_path, replies), functions=[ask], workdir=link)
    events: list[api.Event] = []
    answer = await api.run(plan, "go", on_event=events.append)
    assert answer.text == "done", answer.error
    [asked] = [event["output"] for event in events if event["type"] == "tool_end"]
    projects = [
        SessionStore().find(name).metadata["project"]
        for name in (answer.result["session_id"], asked)
    ]
    # As the system reports it there: `amplifier session list` finds the session.
    assert projects == [str(place), os.getcwd()]


async def test_a_plan_stays_the_same_file_when_the_process_changes_its_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_plan(tmp_path, ["hello"])
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("plan.yaml", "~/plan.yaml"):
        plan = api.load_plan(name)
        with contextlib.chdir("/"):
            assert (await api.run(plan, "hi", save=False, workdir=tmp_path)).text == "hello"


MINE = """
class Mine:
    name, description, input_schema = "mine", "Says who it is.", {"type": "object"}

    async def execute(self, input):
        from amplifier_core import ToolResult

        return ToolResult(output="this is mine")


async def mount(coordinator, config=None):
    await coordinator.mount("tools", Mine(), name="mine")
"""


@pytest.mark.usefixtures("warm_workers")
async def test_sources_in_changes_start_at_the_directory_of_the_program(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    program, work = tmp_path / "program", tmp_path / "work"
    work.mkdir()
    module_folder(program, MINE, "amplifier_module_tool_mine")
    mock_plan(program, [{"tool_calls": [{"name": "mine", "input": {}}]}, "done"])
    monkeypatch.chdir(program)
    sets = ["tools=[{module: tool-mine, source: ./amplifier-module-tool-mine}]"]
    plan = api.load_plan("plan.yaml", sets=sets, workdir=work)
    monkeypatch.chdir("/")
    results = [
        (await api.run(plan, "go", save=False)).result,
        (await api.run(plan, "go", save=False, workdir=program)).result,
        *[row.answer.result async for row in api.batch(plan, [{"id": "a"}], prompt="go")],
    ]
    assert [result["outcome"] for result in results] == ["ok"] * 3, results
    assert [[tool["name"] for tool in result["tools"]] for result in results] == [["mine"]] * 3


async def test_a_plan_has_the_project_of_its_working_directory(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name / ".amplifier" / "profiles").mkdir(parents=True)
        profile = tmp_path / name / ".amplifier" / "profiles" / "own.yaml"
        profile.write_text(f"extends: mock\ninstruction: I am {name}.\n")
    with pytest.raises(api.ConfigError, match=r"project .*/a is not trusted"):
        api.load_plan("own", workdir=tmp_path / "a")
    plan = api.load_plan("own", workdir=tmp_path / "a", trust=True)
    assert (await api.run(plan, "hello", save=False)).is_ok
    # Trust in one project is none in another.
    with pytest.raises(api.ConfigError, match=r"project .*/b is not trusted"):
        await api.run(plan, "hello", save=False, workdir=tmp_path / "b")
    succeed("trust", "--yes", cwd=tmp_path / "b")
    other = plan.in_folder(tmp_path / "b")
    assert other.digest != plan.digest
    assert (await api.run(other, "hello", save=False)).is_ok
    with pytest.raises(api.ConfigError, match="missing is not a folder"):
        plan.in_folder(tmp_path / "missing")


@pytest.mark.thorough
async def test_many_sessions_run_at_once() -> None:
    plan = api.load_plan("mock")
    answers = await asyncio.gather(*(api.run(plan, f"n{n}", save=False) for n in range(50)))
    assert [answer.text for answer in answers] == [f"You said: n{n}" for n in range(50)]


@pytest.fixture
def key(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ANTHROPIC_API_KEY", "k")


@pytest.fixture
def warm_workers(monkeypatch: pytest.MonkeyPatch) -> Generator[None]:
    """Workers of batches are processes that have imported their own code already."""
    interpreter = WarmInterpreter.suited_to(child_environment(Path(os.environ["AMPLIFIER_HOME"])))
    if interpreter is None:
        yield
        return
    ends: list[int] = []

    def start(args: list[str], *, shell: bool, **options: Any) -> WarmModule:
        assert not shell
        return WarmModule(interpreter, args, **options)

    def wait(process: int, options: int) -> tuple[int, int]:
        # They are not children of this process, which waits for them all the same.
        status = interpreter.wait(process, None)
        assert status is not None
        ends.append(status)
        return process, status

    patched = SimpleNamespace(**{**vars(subprocess), "Popen": start})
    monkeypatch.setattr(unix_events, "subprocess", patched)
    monkeypatch.setattr(unix_events, "os", SimpleNamespace(**{**vars(os), "waitpid": wait}))
    yield
    assert set(ends) == {0}


async def answers(
    plan: api.Plan,
    folder: Path,
    prompt: str = "row {{n}}",
    repeat: int = 1,
    workers: int = 3,
    cache: bool = False,
) -> dict[str, str]:
    rows = [{"id": f"r{n}", "n": n} for n in range(6)]
    options: dict[str, Any] = {"repeat": repeat, "workers": workers, "cache": cache}
    call = api.batch(plan, rows, folder=folder, prompt=prompt, **options)
    return {row.id: row.answer.text async for row in call}


@pytest.mark.usefixtures("key", "warm_workers")
async def test_a_batch_yields_each_answer_once_and_continues_in_its_folder(tmp_path: Path) -> None:
    async with ScriptedLLM([held_rows(None)], repeat_last=True) as server:
        place = tmp_path / "place"
        place.mkdir()
        plan = api.load_plan(anthropic_plan(tmp_path, server), workdir=place)
        folder = tmp_path / "out"
        everything = {f"r{n}": f"did row {n}" for n in range(6)}
        assert await answers(plan, folder, workers=3, cache=True) == everything
        assert await answers(plan, folder) == everything
        assert await answers(plan, tmp_path / "again", cache=True) == everything
        assert len(server.completions) == 6
        with pytest.raises(api.ConfigError, match="began with a different prompt and repeat"):
            await answers(plan, folder, prompt="other {{n}}", repeat=2)
        with pytest.raises(api.ConfigError, match="began with different rows"):
            await anext(api.batch(plan, [{"n": 1}], folder=folder, prompt="row {{n}}"))
        session = json.loads((folder / "sessions" / "r0" / "metadata.json").read_text())
        assert session["project"] == str(place)
        status = run_amplifier("batch", "status", folder)
        assert "6 of 6 rows, ended" in status.stdout


@pytest.mark.usefixtures("warm_workers")
async def test_a_batch_that_an_earlier_version_began_continues(tmp_path: Path) -> None:
    plan, folder = api.load_plan("mock"), tmp_path / "out"
    before = await answers(plan, folder)
    file = folder / "batch.json"
    facts = json.loads(file.read_text())
    # It did not have this option.
    del facts["request"]["no_skills"]
    file.write_text(json.dumps(facts))
    begun, *records = (folder / "journal.jsonl").read_text().splitlines()
    begun = json.loads(begun)
    del begun["facts"]["request"]["no_skills"]
    (folder / "journal.jsonl").write_text("\n".join([json.dumps(begun), *records, ""]))
    (folder / "status.json").unlink()
    assert await answers(plan, folder) == before


@pytest.mark.usefixtures("key", "warm_workers")
async def test_cancelling_a_batch_stops_its_rows_and_they_continue(tmp_path: Path) -> None:
    gate = asyncio.Event()
    async with ScriptedLLM([held_rows(gate)], repeat_last=True) as server:
        plan = api.load_plan(anthropic_plan(tmp_path, server))
        running = asyncio.create_task(answers(plan, tmp_path / "out", workers=2))
        await server.arrived(2)
        running.cancel()
        with pytest.raises(asyncio.CancelledError):
            await running
        status = json.loads(
            run_amplifier("batch", "status", tmp_path / "out", "--output", "json").stdout
        )
        assert (status["is_running"], status["running"], status["pending"]) == (False, 0, 6)
        gate.set()
        assert len(await answers(plan, tmp_path / "out")) == 6


@pytest.mark.usefixtures("key", "warm_workers")
async def test_a_batch_whose_caller_is_cancelled_at_each_wait_stops_its_rows(
    tmp_path: Path,
) -> None:
    """As web frameworks do for a client that has disconnected."""
    anyio = pytest.importorskip("anyio")
    async with ScriptedLLM([held_rows(asyncio.Event())], repeat_last=True) as server:
        plan = api.load_plan(anthropic_plan(tmp_path, server))
        scope = anyio.CancelScope()

        async def client() -> None:
            with scope:
                await answers(plan, tmp_path / "out", workers=1)

        running = asyncio.create_task(client())
        await server.arrived(1)
        scope.cancel()
        await running
        await eventually(lambda: not is_running(tmp_path / "out"))
        journal = (tmp_path / "out" / "journal.jsonl").read_text()
        assert json.loads(journal.splitlines()[-1])["why"] == "stopped"


@pytest.mark.usefixtures("warm_workers")
async def test_a_batch_that_stops_early_raises_after_its_answers(tmp_path: Path) -> None:
    plan = api.load_plan("mock")
    found: list[api.RowAnswer] = []
    rows = [{"prompt": "a"}, {"prompt": "b"}]
    running = api.batch(plan, rows, checks=["false"], stop_after=1, workers=1)
    found.append(await anext(running))
    with pytest.raises(api.BatchStopped, match="1 row failed") as caught:
        await anext(running)
    assert [row.answer.outcome for row in found] == ["check_failed"]
    assert caught.value.outcome == "error"
    with pytest.raises(api.UsageError, match="the row is not JSON data"):
        await anext(api.batch(plan, [{"prompt": object()}]))


@pytest.mark.usefixtures("warm_workers")
async def test_a_limit_on_cost_needs_a_known_price(tmp_path: Path) -> None:
    rows = [{"prompt": "a"}]
    found = [row async for row in api.batch(api.load_plan("mock"), rows, max_cost=20)]
    assert [row.answer.outcome for row in found] == ["ok"]
    unknown = mock_plan(tmp_path, ["one"])
    with pytest.raises(api.BatchStopped, match="cannot enforce max_cost: no price known") as caught:
        _ = [row async for row in api.batch(api.load_plan(unknown), rows, max_cost=20)]
    assert "run the rows without max_cost" in str(caught.value.hint)
    assert "--" not in f"{caught.value} {caught.value.hint}"


def held_rows(gate: asyncio.Event | None) -> Callable[[Request], Awaitable[Reply]]:
    """A model that answers with the row, once the gate is open."""

    async def answer(request: Request) -> Reply:
        if gate is not None:
            await gate.wait()
        content = request.body["messages"][0]["content"]
        text = content if isinstance(content, str) else content[0]["text"]
        return Reply(f"did {text}")

    return answer


def anthropic_plan(folder: Path, server: ScriptedLLM) -> Path:
    config = {"base_url": server.base_url}
    file = folder / "plan.yaml"
    provider = {"module": "provider-anthropic", "config": config}
    file.write_text(yaml.safe_dump({"extends": "default", "providers": [provider]}))
    return file


@pytest.mark.parametrize(
    ("plan", "why"),
    [
        ("no-such-profile", "unknown profile"),
        ("missing.yaml", "no such file"),
        (Path("missing.yaml"), "no such file"),
    ],
)
def test_a_plan_that_cannot_be_loaded_is_a_configuration_error(plan: str | Path, why: str) -> None:
    with pytest.raises(api.ConfigError, match=why):
        api.load_plan(plan)


def example(*arguments: str | Path, cwd: Path) -> subprocess.CompletedProcess[str]:
    """Run a script of the examples."""
    program = "import runpy, sys; del sys.argv[0]; runpy.run_path(sys.argv[0], run_name='__main__')"
    return run_python(program, EXAMPLES / arguments[0], *arguments[1:], cwd=cwd)


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (("ask.py", "mock", "hello"), "You said: hello\n"),
        (("conversation.py", "mock"), "You said: Say it backwards.\nContinue with: "),
        (("batch.py", "mock", "out"), "n3: You said: What is 3 squared?\n"),
        (("folders.py", "mock", "hello", ".", "/"), ".: You said: hello\n/: You said: hello\n"),
        (("many.py", "mock"), "What is 7 squared? You said: What is 7 squared?\n"),
    ],
)
def test_the_examples_run(arguments: tuple[str, ...], expected: str, tmp_path: Path) -> None:
    done = example(*arguments, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert expected in done.stdout


def test_an_example_reports_its_usage_and_what_it_cannot_open(tmp_path: Path) -> None:
    errors = {
        ("ask.py", "nope", "hello"): "unknown profile 'nope'\n",
        ("conversation.py", "nope"): "unknown profile 'nope'\n",
        ("batch.py", "mock", "/dev/null/out"): "cannot create /dev/null/out: Not a directory",
        ("folders.py", "mock", "hello", "/nowhere"): "workdir: /nowhere is not a folder\n",
        ("many.py", "nope"): "unknown profile 'nope'\n",
        ("weather.py", "nope", "Rome"): "unknown profile 'nope'\n",
    }
    assert {name for name, *_ in errors} == {file.name for file in EXAMPLES.glob("*.py")}
    for (name, *rest), error in errors.items():
        usage, failed = example(name, cwd=tmp_path), example(name, *rest, cwd=tmp_path)
        assert f": python {name} PLAN" in usage.stderr
        assert failed.stderr.startswith(f"error: {error}")
        for done in (usage, failed):
            assert (done.returncode, done.stdout) == (1, "")
            assert "Traceback" not in done.stderr


async def test_prompts_sent_at_once_run_one_after_the_other(tmp_path: Path) -> None:
    slow = mock_plan(tmp_path, ["first", "second"], mock={"chunk_size": 2, "chunk_delay": 0.01})
    async with api.open_session(api.load_plan(slow), save=False) as session:

        async def text(prompt: str) -> str:
            events = [event async for event in session.stream(prompt)]
            return "".join(event["delta"] for event in events if event["type"] == "text")

        assert await asyncio.gather(text("1"), text("2")) == ["first", "second"]


async def test_wrong_values_and_a_closed_session_are_errors(tmp_path: Path) -> None:
    plan = api.load_plan(mock_plan(tmp_path, ["one"]))
    with pytest.raises(api.UsageError, match="approve: unknown value 'ask'"):
        await api.run(plan, "hello", save=False, approve="ask")  # type: ignore[arg-type]
    async with api.open_session(plan, save=False) as session:
        with pytest.raises(api.UsageError, match="timeout: expected a number above 0, got nan"):
            await session.run("hello", timeout=float("nan"))
        with pytest.raises(api.UsageError, match="the prompt is empty"):
            await session.run(" \n")

        async def listen(event: api.Event) -> None: ...

        with pytest.raises(api.UsageError, match="on_event: expected a plain function"):
            await session.run("hello", on_event=listen)  # type: ignore[arg-type]
    with pytest.raises(api.SessionError, match="is closed"):
        await session.run("hello")
    with pytest.raises(api.ConfigError, match="unknown profile"):
        api.load_plan("x" * 5000)


SCRIPT: dict[str, Any] = {
    "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
    "hooks": [{"module": "hooks-approval"}],
}


def scripted(*replies: Any, **more: Any) -> dict[str, Any]:
    return {
        **SCRIPT,
        "providers": [{"module": "provider-mock", "config": {"replies": list(replies)}}],
        **more,
    }


def call(name: str, **values: Any) -> dict[str, Any]:
    return {"tool_calls": [{"name": name, "input": values}]}


async def weather(city: str, days: int = 1) -> dict[str, Any]:
    """Return the weather.

    Args:
        city: The city,
            with its country.
        days: How many days.
    """
    if city == "Atlantis":
        raise LookupError("it has sunk")
    return {"city": city, "days": days}


def shout(text: str) -> str:
    return text.upper()


def first(number: int) -> int:
    return next(iter(range(number, 0)))


async def checked(number: int) -> int:
    return TypeAdapter(int).validate_python(f"{number} of them")


async def tool_results(plan: api.Plan, prompt: str = "go", **options: Any) -> list[Any]:
    async with api.open_session(plan, save=False, **options) as session:
        events = [event async for event in session.stream(prompt)]
    return [event for event in events if event["type"] == "tool_end"]


@pytest.mark.parametrize(
    ("function", "values", "success", "expected"),
    [
        (weather, {"city": "Rome"}, True, '{"city":"Rome","days":1}'),
        (shout, {"text": "hey"}, True, "HEY"),
        (weather, {"city": "Atlantis"}, False, "LookupError: it has sunk"),
        (weather, {"town": "Rome"}, False, "city"),
        (first, {"number": 1}, False, "the function raised StopIteration"),
        (checked, {"number": 1}, False, "ValidationError: 1 validation error for int"),
    ],
)
async def test_a_function_is_called_as_a_tool_without_a_question(
    function: Any, values: dict[str, Any], success: bool, expected: str
) -> None:
    plan = api.load_plan(scripted(call(function.__name__, **values), "done"), functions=[function])
    [result] = await tool_results(plan)
    assert (result["success"], expected in str(result)) == (success, True)


async def test_a_rule_of_the_plan_still_denies_a_function() -> None:
    rules = [{"tool": "shout", "action": "deny"}]
    hooks = [{"module": "hooks-approval", "config": {"rules": rules}}]
    plan = api.load_plan(scripted(call("shout", text="a"), "done", hooks=hooks), functions=[shout])
    [result] = await tool_results(plan)
    assert not result["success"]


async def test_other_tools_are_decided_as_without_functions(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    write = call("write_file", file_path="a.txt", content="x")
    script = scripted(write, "done", tools=[{"module": "tool-filesystem"}])
    asked: list[Any] = []

    def decide(question: api.Approval) -> str:
        asked.append(question["tool"])
        return "deny"

    for approve in ("deny", decide):
        [result] = await tool_results(api.load_plan(script, functions=[shout]), approve=approve)
        assert not result["success"]
    assert asked == ["write_file"]
    [result] = await tool_results(api.load_plan(script, functions=[shout]), approve="allow")
    assert result["success"]


async def test_the_model_gets_the_description_and_the_schema_and_selected_tools() -> None:
    plan = api.load_plan(
        scripted("done", tools=[{"module": "tool-filesystem"}]),
        functions=[weather],
        tools=["read_file"],
    )
    async with api.open_session(plan, save=False) as session:
        assert (await session.run("go")).is_ok
        provider: Any = session._opened.session.coordinator.get("providers")["mock"]  # pyright: ignore[reportPrivateUsage]
    tools = {tool["name"]: tool for tool in provider.requests[0]["tools"]}
    assert set(tools) == {"read_file", "weather"}
    assert tools["weather"]["description"] == "Return the weather."
    assert tools["weather"]["parameters"] == {
        "type": "object",
        "properties": {
            "city": {"type": "string", "description": "The city, with its country."},
            "days": {"type": "integer", "default": 1, "description": "How many days."},
        },
        "required": ["city"],
        "additionalProperties": False,
    }


def any_number(*values: int) -> None: ...


@pytest.mark.parametrize(
    ("functions", "words"),
    [
        ([lambda text: text], "<lambda>"),
        ([any_number], "*values"),
        ([shout, shout], "two functions"),
        ([asyncio.sleep, print], "print"),
        ([max], "max"),
    ],
)
def test_what_cannot_be_a_tool_is_a_usage_error(functions: list[Any], words: str) -> None:
    with pytest.raises(api.UsageError) as raised:
        api.load_plan("mock", functions=functions)
    assert words in str(raised.value)


async def test_a_function_cannot_replace_a_tool_of_the_plan() -> None:
    async def read_file(path: str) -> str:
        return path

    plan = api.load_plan(
        scripted("done", tools=[{"module": "tool-filesystem"}]), functions=[read_file]
    )
    with pytest.raises(api.UsageError, match="read_file"):
        await api.run(plan, "go", save=False)


@pytest.mark.parametrize(
    ("plan", "functions", "words"), [("mock", [shout], "shout"), (scripted("one"), [], "a file")]
)
async def test_a_batch_refuses_what_other_processes_do_not_have(
    plan: Any, functions: list[Any], words: str
) -> None:
    loaded = api.load_plan(plan, functions=functions)
    with pytest.raises(api.UsageError, match=words):
        async for _ in api.batch(loaded, [{"prompt": "a"}]):
            pass


def is_even(value: int) -> int:
    if value % 2:
        raise ValueError("must be even")
    return value


@dataclass
class Even:
    n: Annotated[int, AfterValidator(is_even)]


async def test_an_answer_is_an_object_that_meets_all_rules_of_its_type() -> None:
    plan = api.load_plan(scripted('{"n": "x"}', '{"n": 3}', '{"n": 4}'))
    async with api.open_session(plan, save=False) as session:
        answer = await session.run("go", answer_type=Even)
        provider: Any = session._opened.session.coordinator.get("providers")["mock"]  # pyright: ignore[reportPrivateUsage]
    assert (answer.data, answer.result["data"]) == (Even(4), {"n": 4})
    assert "$.n: Value error, must be even" in str(provider.requests[2])


async def test_an_answer_of_another_type_has_no_object() -> None:
    answer = await api.run(
        api.load_plan(scripted("1", "2", "3")), "go", answer_type=list[int], save=False
    )
    assert not answer.is_ok


async def test_a_type_without_a_schema_is_a_usage_error() -> None:
    plan = api.load_plan("mock")
    with pytest.raises(api.UsageError, match="answer_type"):
        await api.run(plan, "go", answer_type=asyncio.Queue, save=False)
    with pytest.raises(api.UsageError, match="both"):
        await api.run(plan, "go", answer_type=int, schema={}, save=False)


async def test_a_plan_as_data_can_extend_a_profile_and_use_files_of_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    mock_plan(tmp_path, ["from the file"], name="base.yaml")
    monkeypatch.chdir(tmp_path)
    plan = api.load_plan({"extends": "./base.yaml"})
    assert plan.name == "plan"
    assert (await api.run(plan, "go", save=False)).text == "from the file"


async def test_a_session_of_a_plan_as_data_is_resumed_from_the_shell() -> None:
    answer = await api.run(api.load_plan(scripted("one", "two")), "first", session_id="mine")
    assert answer.text == "one"
    done = run_amplifier("run", "--resume", "mine", "second")
    assert (done.code, done.stdout) == (0, "one\n"), done.stderr


@pytest.mark.parametrize("plan", [{"session": {"kontext": "x"}}, {"x": 1}])
def test_a_plan_as_data_with_mistakes_is_refused(plan: dict[str, Any]) -> None:
    with pytest.raises(api.ConfigError):
        api.load_plan(plan)
    with pytest.raises(api.UsageError, match="plain data"):
        api.load_plan({"session": object()})


async def test_a_session_stays_open_until_it_is_closed() -> None:
    session = await api.open(api.load_plan(scripted("one", "two")), save=False)
    assert [(await session.run(text)).text for text in ("a", "b")] == ["one", "two"]
    await session.close()
    await session.close()
    assert session.is_closed
    with pytest.raises(api.SessionError, match="closed"):
        await session.run("c")


async def test_one_prompt_without_await_inside_and_outside_of_an_event_loop() -> None:
    plan = api.load_plan(scripted("one"))
    assert api.run_sync(plan, "go", save=False).text == "one"
    program = (
        "from amplifier_app import api; print(api.run_sync(api.load_plan('mock'), 'hello').text)"
    )
    assert run_python(program).stdout == "You said: hello\n"
    with pytest.raises(api.UsageError):
        api.run_sync(plan, "go", save=False, approve="maybe")


INTERRUPTED = """
import asyncio, signal, threading
from amplifier_app import api

async def cell():
    main = threading.main_thread().ident
    threading.Timer(3, signal.pthread_kill, [main, signal.SIGINT]).start()
    try:
        api.run_sync(api.load_plan("plan.yaml"), "go", session_id="mine")
    except KeyboardInterrupt:
        print("interrupted", threading.active_count())

asyncio.new_event_loop().run_until_complete(cell())
"""


def test_a_prompt_that_is_interrupted_in_a_notebook_ends_with_its_session(tmp_path: Path) -> None:
    mock_plan(tmp_path, ["a " * 5000], mock={"chunk_size": 2, "chunk_delay": 0.05})
    done = run_python(INTERRUPTED, cwd=tmp_path)
    assert done.stdout.startswith("interrupted 1"), done.stderr
    again = run_amplifier("run", "--resume", "mine", "--profile", "mock", "hello", cwd=tmp_path)
    assert (again.code, again.stdout) == (0, "You said: hello\n"), again.stderr


def test_the_example_with_a_function_runs(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    mock_plan(tmp_path, [call("weather", city="Rome"), '{"city": "Rome", "degrees": 21}'])
    done = example("weather.py", plan, "Rome", cwd=tmp_path)
    assert (done.returncode, done.stdout) == (0, "Forecast(city='Rome', degrees=21)\n"), done.stderr
