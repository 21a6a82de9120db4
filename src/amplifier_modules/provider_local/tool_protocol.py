"""Tools for models too small to call them with their chat template.

The tools are listed in the system message, a few example turns show their use, and a JSON schema
constrains the output to one of two shapes:

    {"tool": "<name>", "arguments": {...}}
    {"answer": "<text>"}

`constrain_output` writes such a request, `plain` writes one without tools for a model that has none, and
`Reading` turns what the model writes back into chunks of text and calls.
"""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, cast

from amplifier_core.message_models import (
    ChatRequest,
    ChatResponse,
    Message,
    ResponseFormatJsonSchema,
    ToolSpec,
)
from amplifier_modules._shared.history.values import arguments_or_text
from amplifier_modules._shared.module.tools import object_schema
from amplifier_modules._shared.providers.answer_stream import (
    BlockChunk,
    StreamedBlock,
    find_tool_calls,
)

_RULES = """\
You answer with one JSON object and nothing else, in one of two forms:
{"tool": "<name of a tool>", "arguments": {...}} to use a tool,
{"answer": "<text>"} to speak to the user.
You cannot see files, folders or the machine except through tools: for anything about them, use a \
tool first and never guess. What you know or can write yourself (facts, explanations, translations, \
poems, small talk) you answer directly. After a tool's result, either use the next tool or answer.

Tools:
"""
# Turns shown before the conversation. Their tools do not exist; only the way of speaking counts.
_SHOWN: tuple[tuple[str, dict[str, Any]], ...] = (
    ("What is the capital of France?", {"answer": "Paris."}),
    ("What time is it in Tokyo?", {"tool": "clock", "arguments": {"city": "Tokyo"}}),
    ("Result of clock:\n14:05", {"answer": "It is 14:05 in Tokyo."}),
    ("Say 'good night' in German", {"answer": "Gute Nacht."}),
    (
        "Send Bob a note that lunch is at noon",
        {"tool": "send_note", "arguments": {"to": "Bob", "text": "Lunch is at noon."}},
    ),
    ("Result of send_note:\nsent", {"answer": "I told Bob that lunch is at noon."}),
)
# Shown with the name of an offered tool that runs shell commands, of which small models make too
# little unless they see it used.
_SHOWN_OF_SHELL: tuple[tuple[str, str, str, str], ...] = (
    (
        "Which version of git is installed?",
        "git --version",
        "git version 2.43.0",
        "Git 2.43.0 is installed.",
    ),
    ("Move a.md into old/", "mv a.md old/", "(no output)", "a.md is now in old/."),
)
_SHELL_ARGUMENT = "command"
_TOOL_HEAD = re.compile(r'\s*\{\s*"tool"\s*:\s*"((?:[^"\\]|\\.)*)"\s*(?:,\s*"arguments"\s*:\s*)?')
_ANSWER_HEAD = re.compile(r'\s*\{\s*"answer"\s*:\s*"')
# Read by the grammar engine: one way to write white space saves tokens.
_COMPACT = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
_NO_EYES = "[an image, which this model cannot see]"


def constrain_output(request: ChatRequest, *, loose: bool = False) -> ChatRequest:
    """Build the request with its tools in the system message and constrained output.

    Args:
        request: Normalised, with tools.
        loose: Do not constrain arguments by the tools' schemas, which the grammar engine refused.
    """
    tools, may_answer = _allowed(request)
    messages = [_with_rules(request.messages, tools), *_examples(tools)]
    messages += _as_json([m for m in request.messages if m.role not in ("system", "developer")])
    return request.model_copy(
        update={
            "messages": messages,
            "tools": None,
            "tool_choice": None,
            "response_format": ResponseFormatJsonSchema(
                json_schema={
                    "title": "reply",
                    "anyOf": [_call_schema(tool, loose=loose) for tool in tools]
                    + ([object_schema("answer", answer={"type": "string"})] if may_answer else []),
                    "x-guidance": _COMPACT,
                }
            ),
        }
    )


def plain(request: ChatRequest, default_system: str = "") -> ChatRequest:
    """Build the request without tools; calls and results of earlier turns become text.

    Args:
        request: Normalised.
        default_system: System message for a conversation without one.
    """
    messages: list[Message] = []
    if default_system and all(m.role not in ("system", "developer") for m in request.messages):
        messages.append(Message(role="system", content=default_system))
    for message in request.messages:
        if message.role in ("tool", "function"):
            messages.append(_result(message))
            continue
        calls = [f"(used {block.name})" for block in _blocks(message, "tool_call")]
        text = "\n".join([*filter(None, [_text(message)]), *calls])
        messages.append(Message(role=message.role, content=text))
    return request.model_copy(update={"messages": messages, "tools": None, "tool_choice": None})


def has_images(request: ChatRequest) -> bool:
    """Return True if an image is anywhere in the conversation."""
    return any(_blocks(message, "image") for message in request.messages)


class Reading:
    """Turn the model's output into the chunks of a stream.

    An answer's text is passed on as it grows. A call is passed on when it is complete.
    """

    def __init__(self) -> None:
        self._raw = ""
        self._answer = StreamedBlock(0, "text")
        self._text: _JSONString | None = None

    def feed(self, piece: str) -> list[BlockChunk]:
        """The chunks for another piece of the model's output."""
        if self._text is not None:
            return self._say(self._text.feed(piece))
        self._raw += piece
        head = _ANSWER_HEAD.match(self._raw)
        if head is None:
            return []
        self._text = _JSONString()
        return [self._answer.start(), *self._say(self._text.feed(self._raw[head.end() :]))]

    def finish(self, response: ChatResponse) -> tuple[list[BlockChunk], ChatResponse]:
        """The last chunks, and the response with what was said or called as its content."""
        chunks: list[BlockChunk] = []
        if self._text is None:
            if not self._raw.strip():
                return [], _changed(response, content=[], tool_calls=None)
            if head := _TOOL_HEAD.match(self._raw):
                return _call(head, self._raw, response)
            # Neither shape, so the answer was cut off: showing it is better than losing it.
            chunks = [self._answer.start(), *self._say(self._raw)]
        block = {"type": "text", "text": self._answer.text}
        changed = _changed(response, content=[block], tool_calls=None)
        return [*chunks, self._answer.end(block)], changed

    def _say(self, text: str) -> list[BlockChunk]:
        return [self._answer.delta(text)] if text else []


class _JSONString:
    """Decodes a JSON string from pieces cut anywhere, up to its closing quote."""

    def __init__(self) -> None:
        self._rest = ""
        self._closed = False

    def feed(self, piece: str) -> str:
        """The text the piece completes."""
        if self._closed:
            return ""
        raw = self._rest + piece
        at = 0
        while at < len(raw) and raw[at] != '"':
            length = _token_length(raw, at)
            if at + length > len(raw):
                break
            at += length
        self._closed = at < len(raw) and raw[at] == '"'
        self._rest = "" if self._closed else raw[at:]
        text: str = json.loads(f'"{raw[:at]}"', strict=False)
        return text.encode("utf-8", "replace").decode("utf-8")


def _token_length(raw: str, at: int) -> int:
    """Length of the character or escape at `at`; beyond the end if it is not whole yet."""
    if raw[at] != "\\":
        return 1
    if raw[at : at + 2] != "\\u":
        return 2
    high = raw[at + 2 : at + 6]
    is_half = len(high) == 4 and high[0] in "dD" and high[1] in "89abAB"
    return 12 if is_half else 6


# --- the request --------------------------------------------------------------------------------


def _allowed(request: ChatRequest) -> tuple[list[ToolSpec], bool]:
    """The tools that may be used, and whether the model may answer instead."""
    tools = list(request.tools or ())
    choice = request.tool_choice
    if isinstance(choice, Mapping):
        function: Any = choice.get("function")
        named: Any = function.get("name") if isinstance(function, Mapping) else choice.get("name")
        choice = named if isinstance(named, str) else str(choice.get("type", "auto"))
    if choice in ("required", "any"):
        return tools, False
    only = [tool for tool in tools if tool.name == choice]
    return (only, False) if only else (tools, True)


def _with_rules(messages: Sequence[Message], tools: Iterable[ToolSpec]) -> Message:
    instructions = [
        _text(message) for message in messages if message.role in ("system", "developer")
    ]
    listed = "\n".join(_signature(tool) for tool in tools)
    return Message(role="system", content="\n\n".join([*instructions, _RULES + listed]))


def _signature(tool: ToolSpec) -> str:
    """One line: ``- name(path: string, limit?: integer): What it does.``"""
    properties: dict[str, Any] = tool.parameters.get("properties") or {}
    required = tool.parameters.get("required") or ()
    arguments = ", ".join(
        f"{name}{'' if name in required else '?'}: {_type_name(schema)}"
        for name, schema in properties.items()
    )
    paragraph = " ".join((tool.description or "").strip().split("\n\n")[0].split())
    return f"- {tool.name}({arguments})" + (f": {paragraph}" if paragraph else "")


def _type_name(schema: Any) -> str:
    if not isinstance(schema, Mapping):
        return "any"
    facts = cast("Mapping[str, Any]", schema)
    if isinstance(facts.get("enum"), list):
        return " or ".join(json.dumps(value) for value in facts["enum"])
    kind = facts.get("type", "any")
    return kind if isinstance(kind, str) else "any"


def _examples(tools: Iterable[ToolSpec]) -> list[Message]:
    examples = list(_SHOWN)
    shell = next((tool.name for tool in tools if _runs_commands(tool)), None)
    if shell is not None:
        for asked, command, output, answer in _SHOWN_OF_SHELL:
            examples += [
                (asked, {"tool": shell, "arguments": {_SHELL_ARGUMENT: command}}),
                (f"Result of {shell}:\n{output}", {"answer": answer}),
            ]
    turns: list[Message] = []
    for question, replied in examples:
        turns += [Message(role="user", content=question), _reply(replied)]
    return turns


def _runs_commands(tool: ToolSpec) -> bool:
    return list(tool.parameters.get("required") or ()) == [_SHELL_ARGUMENT]


def _as_json(messages: Sequence[Message]) -> list[Message]:
    """Earlier turns in the shapes: each call directly before its own result."""
    results = {m.tool_call_id: m for m in messages if m.role in ("tool", "function")}
    turns: list[Message] = []
    for message in messages:
        if message.role in ("tool", "function"):
            continue
        calls = _blocks(message, "tool_call")
        for call in calls:
            turns.append(_reply({"tool": call.name, "arguments": call.input}))
            if call.id in results:
                turns.append(_result(results[call.id]))
        if calls:
            continue  # The two shapes have no place for text next to a call.
        if message.role == "assistant":
            turns.append(_reply({"answer": _text(message)}))
        else:
            turns.append(Message(role="user", content=_text(message)))
    return turns


def _reply(value: Mapping[str, Any]) -> Message:
    return Message(role="assistant", content=json.dumps(value, ensure_ascii=False))


def _result(message: Message) -> Message:
    return Message(role="user", content=f"Result of {message.name or 'tool'}:\n{_text(message)}")


def _text(message: Message) -> str:
    if isinstance(message.content, str):
        return message.content
    texts = [
        block.text if block.type == "text" else _NO_EYES
        for block in message.content
        if block.type in ("text", "image")
    ]
    return "\n".join(texts)


def _blocks(message: Message, kind: str) -> list[Any]:
    if isinstance(message.content, str):
        return []
    return [block for block in message.content if block.type == kind]


def _call_schema(tool: ToolSpec, *, loose: bool) -> dict[str, Any]:
    arguments = dict(tool.parameters)
    # References would point into the schema this one becomes a part of.
    if loose or "$ref" in json.dumps(arguments):
        arguments = {}
    arguments.pop("$schema", None)
    arguments["type"] = "object"
    if arguments.get("properties"):
        arguments.setdefault("additionalProperties", False)
    return object_schema("tool", "arguments", tool={"const": tool.name}, arguments=arguments)


# --- the answer ---------------------------------------------------------------------------------


def _changed(response: ChatResponse, **fields: Any) -> ChatResponse:
    return ChatResponse.model_validate({**response.model_dump(), **fields})


def _call(
    head: re.Match[str], raw: str, response: ChatResponse
) -> tuple[list[BlockChunk], ChatResponse]:
    name = str(json.loads(f'"{head[1]}"'))
    streamed = StreamedBlock(0, "tool_call", id=f"call_{secrets.token_hex(12)}", name=name)
    reply, invalid = arguments_or_text(raw)
    arguments = reply.get("arguments")
    if invalid is None and isinstance(arguments, dict):
        written = json.dumps(arguments, ensure_ascii=False)
        block = {**streamed.call(""), "input": arguments}
    else:
        written = raw[head.end() :].strip()
        block = {**streamed.call(""), "invalid_arguments": written}
    chunks = [streamed.start(), streamed.delta(written), streamed.end(block)]
    return chunks, _changed(
        response,
        content=[block],
        tool_calls=find_tool_calls([block]),
        finish_reason="length" if response.finish_reason == "length" else "tool_calls",
    )
