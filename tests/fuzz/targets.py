"""What is fuzzed: everything that parses bytes of a file, a server or a model.

A target is a function of bytes that ends normally for every input, also by the errors that its reader
documents. Any other exception is a finding, and so is more than 1 s of processor time or 100 MB of memory.
"""

import asyncio
import contextlib
import errno
import functools
import json
import os
import re
import shlex
import shutil
from collections.abc import Callable, Generator
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_app.runtime.export.markdown import as_data, as_trajectory, session_markdown
from amplifier_app.runtime.export.page import as_page
from amplifier_app.runtime.export.parts import export_session
from amplifier_app.sessions.bundle import read_bundle
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.store import SessionStore
from amplifier_app.sessions.verification import repair, verify
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.archives import unpack
from amplifier_app.sources.loading import load
from amplifier_core.llm_errors import LLMError
from amplifier_extras.tool_mcp.hub import Results
from amplifier_modules import provider_anthropic, provider_openai
from amplifier_modules._shared.http import connections
from amplifier_modules.hooks_approval.commands import Unclear, may_run, split_segments, split_words
from amplifier_modules.hooks_approval.read_only_commands import only_reads
from amplifier_modules.hooks_approval.rules import danger_in
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from tests.fuzz.files import folder
from tests.modules._shared.loop.rig import Rig, echo_tool
from tests.support.llm import anthropic_rules, openai_rules, responses_rules
from tests.support.llm.anthropic_thinking import Issued


class Target(NamedTuple):
    """
    Attributes:
        run: Reads the input.
        tokens: Words of its format.
    """

    run: Callable[[bytes], None]
    tokens: tuple[bytes, ...] = ()


@contextlib.contextmanager
def _file(name: str, data: bytes) -> Generator[Path]:
    path = folder() / "files" / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    try:
        yield path
    finally:
        shutil.rmtree(path.parent)


# -- plans -----------------------------------------------------------------------------------


def _read_plan(name: str, data: bytes) -> None:
    with _file(name, data) as path, contextlib.suppress(ConfigError):
        try:
            load(plan=path, environ={"SET": "a value", "NUMBER": "3"}).resolve()
        except OSError as error:
            # Reported as it is, with the name that a plan cannot refer to.
            if error.errno != errno.ENAMETOOLONG:
                raise


# -- streams of providers --------------------------------------------------------------------


class _Server(httpx.AsyncBaseTransport):
    """Answers the first request with the input, and the others with a short answer."""

    def __init__(self, first: bytes, others: bytes, check: Callable[[Any], None]) -> None:
        self._answers = [first, others]
        self._check = check

    async def handle_async_request(self, request: httpx.Request) -> httpx.Response:
        self._check(json.loads(await request.aread()))
        body = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        return httpx.Response(200, headers={"content-type": "text/event-stream"}, content=body)


def _take_turns(module: Any, config: dict[str, Any], server: _Server) -> None:
    """Two turns of a session; the second sends back what the first received."""

    def open_client(url: str, *_: Any, **__: Any) -> connections.HttpxClient:
        return connections.HttpxClient(url, httpx.AsyncClient(transport=server))

    async def turns() -> None:
        rig = Rig(StreamingOrchestrator)
        rig.add_tool(echo_tool())
        settings = {"base_url": "http://127.0.0.1:9", "api_key": "k", "max_retries": 0, **config}
        cleanup = await module.mount(rig.coordinator, settings)
        rig.providers = rig.coordinator.get("providers")
        try:
            for prompt in ("go", "go on"):
                with contextlib.suppress(LLMError):
                    await rig.run(prompt)
        finally:
            await cleanup()
        json.dumps(rig.context.messages, default=str).encode()

    original = connections.open_client
    connections.open_client = open_client
    try:
        asyncio.run(turns())
    finally:
        connections.open_client = original


def _read_messages_stream(data: bytes) -> None:
    def check(body: Any) -> None:
        issued = Issued()
        for message in body["messages"]:
            for block in message["content"] if isinstance(message["content"], list) else ():
                if block["type"] == "thinking":
                    issued.signatures[block["signature"]] = block["thinking"]
                elif block["type"] == "redacted_thinking":
                    issued.redacted.add(block["data"])
        anthropic_rules.check_request(body, issued)

    server = _Server(data, _ANSWERS["messages"], check)
    _take_turns(provider_anthropic, {"model": "claude-sonnet-5-5"}, server)


def _read_chat_stream(data: bytes) -> None:
    server = _Server(data, _ANSWERS["chat"], openai_rules.check_request)
    _take_turns(provider_openai, {"model": "gpt-4o", "api": "chat"}, server)


def _read_responses_stream(data: bytes) -> None:
    server = _Server(data, _ANSWERS["responses"], responses_rules.check_request)
    _take_turns(provider_openai, {"model": "gpt-5", "api": "responses"}, server)


def _events(*values: dict[str, Any]) -> bytes:
    return b"".join(b"data: " + json.dumps(value).encode() + b"\n\n" for value in values)


_ANSWERS = {
    "messages": _events(
        {"type": "message_start", "message": {"id": "m", "role": "assistant", "content": []}},
        {"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": ""}},
        {"type": "content_block_delta", "index": 0, "delta": {"type": "text_delta", "text": "ok"}},
        {"type": "content_block_stop", "index": 0},
        {"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {}},
        {"type": "message_stop"},
    ),
    "chat": _events(
        {"choices": [{"index": 0, "delta": {"content": "ok"}, "finish_reason": "stop"}]}
    )
    + b"data: [DONE]\n\n",
    "responses": _events(
        {
            "type": "response.completed",
            "response": {"id": "r", "status": "completed", "output": [], "usage": None},
        }
    ),
}


# -- sessions --------------------------------------------------------------------------------


def _read_session(transcript: bytes, metadata: bytes, events: bytes = b"") -> None:
    root = folder() / "sessions"
    path = root / "20260101-aaa"
    path.mkdir(parents=True)
    try:
        (path / "transcript.jsonl").write_bytes(transcript)
        (path / "metadata.json").write_bytes(metadata)
        (path / "events.jsonl").write_bytes(events)
        (path / "plan.yaml").write_bytes(b"extends: mock\n")
        store = SessionStore(root)
        store.summaries()
        with contextlib.suppress(SessionError):
            _export(store.find(path.name))
        findings = verify(path)
        if any(finding.repair for finding in findings):
            repair(path, findings)
        with contextlib.suppress(SessionError):
            session = store.open(path.name)
            session.append({"role": "user", "content": "next"})
            session.close()
            assert store.read(path.name)[1][-1] == {"role": "user", "content": "next"}
            _export(store.find(path.name))
    finally:
        shutil.rmtree(root)


def _export(session: SessionFolder) -> None:
    found = export_session(session, (), lambda value: value)
    session_markdown(found)
    as_page(found)
    json.dumps([as_data(found), as_trajectory(found)], default=str)


def _read_transcript(data: bytes) -> None:
    _read_session(data, b'{"schema_version": 2, "id": "20260101-aaa"}\n')


def _read_metadata(data: bytes) -> None:
    _read_session(b'{"role": "user", "content": "hi"}\n', data)


def _read_events(data: bytes) -> None:
    _read_session(b'{"role": "user", "content": "hi"}\n', b"{}", data)


def _read_bundle(data: bytes) -> None:
    with _file("bundle.tar", data) as path, contextlib.suppress(SessionError):
        read_bundle(path)


# -- sources ---------------------------------------------------------------------------------

_FORMATS = (".zip", ".whl", ".tar", ".tar.gz", ".tar.bz2", ".tar.xz")


def _unpack(data: bytes) -> None:
    """The first byte of the input selects the format."""
    name = "archive" + _FORMATS[data[0] % len(_FORMATS)] if data else "archive.tar"
    with _file(name, data[1:]) as path:
        into = path.parent / "into"
        into.mkdir()
        with contextlib.suppress(SourceError):
            unpack(path, name, into)
        assert sorted(os.listdir(path.parent)) == sorted([name, "into"])


# -- MCP servers -----------------------------------------------------------------------------


def _read_mcp(data: bytes) -> None:
    """Lines of a server's output, each read as a message and its result as every kind of result."""
    import mcp_types
    from pydantic import ValidationError

    results = Results(10_000, folder)
    from amplifier_extras.tool_mcp.stdio import StdioTransport

    transport = StdioTransport.__new__(StdioTransport)
    transport._on_error_output = lambda _: None  # pyright: ignore[reportPrivateUsage]
    for line in data.split(b"\n"):
        message = transport._message(line)  # pyright: ignore[reportPrivateUsage]
        result = getattr(getattr(message, "message", None), "result", None)
        if result is None:
            continue
        for kind, read in (
            (mcp_types.CallToolResult, results.of_call),
            (mcp_types.ReadResourceResult, results.of_resource),
            (mcp_types.GetPromptResult, results.of_prompt),
        ):
            try:
                parsed = kind.model_validate(result, by_name=False)
            except ValidationError:
                continue
            read(parsed)
    for saved in folder().glob("mcp-*"):
        saved.unlink()


# -- shell commands --------------------------------------------------------------------------


def _classify(data: bytes) -> None:
    command = data.decode("utf-8", "surrogateescape")
    danger_in(command)
    only_reads(command)
    for pattern in ("rm *", "git push", "git push *"):
        may_run(command, pattern)
    try:
        words = split_words(command)
    except Unclear:
        pass
    else:
        assert split_segments(command) == [words]
        # Shells remove the backslash from these between double quotes, shlex does not.
        if not re.search(r"\\[$`]", command):
            assert words == shlex.split(command)


_YAML = (
    b": ",
    b"- ",
    b"&a ",
    b"*a",
    b"<<: ",
    b"!!",
    b"|\n ",
    b">-\n ",
    b"? ",
    b"---\n",
    b"${SET}",
    b"${",
)
_STREAM = (b"data: ", b"event: ", b"\n\n", b": ping\n\n", b"data: [DONE]\n\n", b"\r")
_SHELL = (
    b"'",
    b'"',
    b"\\",
    b"$(",
    b"`",
    b"|",
    b"&&",
    b"; ",
    b"2>&1",
    b">/dev/null",
    b"git ",
    b"find ",
    b"-exec",
)

TARGETS = {
    "plan": Target(functools.partial(_read_plan, "plan.yaml"), _YAML),
    "markdown": Target(functools.partial(_read_plan, "plan.md"), _YAML),
    "stream-messages": Target(_read_messages_stream, _STREAM),
    "stream-chat": Target(_read_chat_stream, _STREAM),
    "stream-responses": Target(_read_responses_stream, _STREAM),
    "transcript": Target(_read_transcript),
    "metadata": Target(_read_metadata),
    "events": Target(_read_events),
    "bundle": Target(_read_bundle),
    "archive": Target(_unpack),
    "mcp": Target(_read_mcp),
    "command": Target(_classify, _SHELL),
}
