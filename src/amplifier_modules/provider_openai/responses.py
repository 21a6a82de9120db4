"""The Responses API: the body of a request, and the events of an answer.

Nothing is stored at the service: the whole conversation is sent each time, including the reasoning
of earlier responses, which the service has encrypted. Items have no ids where the API allows it, so
that it looks nothing up.

Each item of an answer becomes blocks: a message one for each part, a function call and a reasoning
item one each. Reasoning is shown as thinking while it streams; what is stored is the item itself,
to be sent back.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, cast

from amplifier_core.llm_errors import LLMError
from amplifier_core.message_models import ChatRequest, Degradation, Message, ReasoningBlock, Usage
from amplifier_modules._shared.history.values import (
    TOOL_SEARCH,
    found_tools,
    is_clean,
    portable_id,
)
from amplifier_modules._shared.http.errors import error_for_body
from amplifier_modules._shared.http.event_stream import text_in, text_or_none
from amplifier_modules._shared.providers.answer_stream import BlockChunk, StreamedBlock
from amplifier_modules._shared.providers.chat_completions import (
    API,
    OpenAIStream,
    Taste,
    image_url,
    read_usage,
    wire_call_id,
    wire_response_format,
    wire_tool_choice,
    wire_tools,
)
from amplifier_modules._shared.providers.settings import first_given
from amplifier_modules.provider_openai.config import OpenAIConfig
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple

ENCRYPTED_REASONING = "reasoning.encrypted_content"

Item = dict[str, Any]


Found = Mapping[str, Sequence[Item]]
"""The tools that searches have found, by the id of the call."""


def wire_input(messages: Sequence[Message], found: Found | None = None) -> list[Item]:
    """The conversation as the API's `input`.

    Args:
        messages: Normalised: each call's result directly follows its message.
        found: The tools to load where a search has found them; None if searches are usual calls.
    """
    items: list[Item] = []
    for message in messages:
        if message.role in ("tool", "function"):
            tools = found.get(message.tool_call_id or "") if found is not None else None
            items.append(_call_output(message) if tools is None else _search_output(message, tools))
        elif message.role == "assistant":
            items += _assistant_items(message, searches=found is not None)
        else:
            items.append({"role": message.role, "content": _input_content(message)})
    return items


def _wire_options(request: ChatRequest, found: Found | None = None) -> Item:
    """The options of a request that the API accepts, under its names, without the conversation."""
    body: Item = {}
    if request.tools:
        tools = [_tool(tool["function"]) for tool in wire_tools(request.tools)]
        body["tools"] = tools if found is None else [*_without_found(tools, found)]
        if request.tool_choice is not None:
            choice, parallel = wire_tool_choice(request.tool_choice)
            body["tool_choice"] = _choice(choice)
            if not parallel:
                body["parallel_tool_calls"] = False
    form = wire_response_format(request)
    if form is not None:
        # The Chat Completions API nests the schema's description one level deeper.
        inner = form.pop("json_schema", {})
        body["text"] = {"format": {**form, **inner}}
    return body


def departures(request: ChatRequest, name: str) -> list[Degradation]:
    """Return the requested features that this API does not support."""
    if not request.stop:
        return []
    return [
        Degradation(
            requested="stop sequences",
            actual="none",
            reason=f"the Responses API of {name} takes none",
        )
    ]


def _tool(function: Mapping[str, Any]) -> Item:
    # Without it the API enforces the schema strictly, and refuses schemas that cannot be enforced.
    return {"type": "function", "strict": False, **function}


def _found_tools(request: ChatRequest) -> Found | None:
    """Return the tools to load during the conversation; None if all are to be loaded from the start.

    The API loads a tool where a search has found it. Otherwise the tool would change the start of the request,
    and the prompt cache would be lost.
    """
    tools = {
        tool["function"]["name"]: {**_tool(tool["function"]), "defer_loading": True}
        for tool in wire_tools(request.tools or ())
    }
    # A tool that must be called has to be loaded from the start.
    if TOOL_SEARCH not in tools or not isinstance(request.tool_choice, str | None):
        return None
    calls = [
        block.id
        for message in request.messages
        if message.role == "assistant" and not isinstance(message.content, str)
        for block in message.content
        if block.type == "tool_call" and block.name == TOOL_SEARCH
    ]
    results = {message.tool_call_id: message for message in request.messages}
    names = {call: found_tools(results[call]) if call in results else [] for call in calls}
    return {call: [tools[name] for name in names[call] if name in tools] for call in calls}


def _without_found(tools: Iterable[Item], found: Found) -> Iterator[Item]:
    """Yield the tools to load from the start, with the service's own form of the search."""
    loaded = {tool["name"] for tools in found.values() for tool in tools}
    for tool in tools:
        if tool["name"] == TOOL_SEARCH:
            about = {key: tool[key] for key in ("description", "parameters")}
            yield {"type": "tool_search", "execution": "client", **about}
        elif tool["name"] not in loaded:
            yield tool


def _search_output(message: Message, tools: Sequence[Item]) -> Item:
    return {
        "type": "tool_search_output",
        "call_id": wire_call_id(message.tool_call_id or ""),
        "execution": "client",
        "status": "completed",
        "tools": tools,
    }


def _choice(choice: str | dict[str, Any]) -> str | Item:
    if isinstance(choice, str):
        return choice
    function = choice.get("function")
    if isinstance(function, Mapping):
        return {"type": "function", "name": cast("Mapping[str, Any]", function)["name"]}
    return choice


def _assistant_items(message: Message, *, searches: bool) -> list[Item]:
    if isinstance(message.content, str):
        return [{"role": "assistant", "content": message.content}]
    items: list[Item] = []
    for block in message.content:
        if block.type == "text":
            item: Item = {"role": "assistant", "content": block.text}
            if isinstance(phase := block.get("phase"), str):
                item["phase"] = phase
            items.append(item)
        elif block.type == "tool_call" and searches and block.name == TOOL_SEARCH:
            items.append(
                {
                    "type": "tool_search_call",
                    "call_id": wire_call_id(block.id),
                    "execution": "client",
                    "status": "completed",
                    "arguments": block.input,
                }
            )
        elif block.type == "tool_call":
            items.append(
                {
                    "type": "function_call",
                    "call_id": wire_call_id(block.id),
                    "name": portable_id(block.name),
                    "arguments": json.dumps(block.input, ensure_ascii=False, separators=(",", ":")),
                }
            )
        elif isinstance(block, ReasoningBlock) and (reasoning := _reasoning(block)):
            items.append(reasoning)
    # Reasoning is refused without the item that follows it.
    while items and items[-1].get("type") == "reasoning":
        items.pop()
    return items


def _reasoning(block: ReasoningBlock) -> Item | None:
    """The reasoning item as received; None if the service could not use it."""
    encrypted = block.get("encrypted_content")
    if not (encrypted or block.content):
        return None
    item: Item = {"type": "reasoning", "summary": block.summary}
    if isinstance(own_id := block.get("id"), str):
        item["id"] = own_id
    if block.content:
        item["content"] = block.content
    if encrypted:
        item["encrypted_content"] = encrypted
    return item


def _call_output(message: Message) -> Item:
    content = _input_content(message)
    return {
        "type": "function_call_output",
        "call_id": wire_call_id(message.tool_call_id or ""),
        "output": content,
    }


def _input_content(message: Message) -> str | list[Item]:
    if isinstance(message.content, str):
        return message.content
    parts: list[Item] = []
    for block in message.content:
        if block.type == "text":
            parts.append({"type": "input_text", "text": block.text})
        elif block.type == "image":
            parts.append(_image(block.source))
    if all(part["type"] == "input_text" for part in parts):
        return "\n".join(part["text"] for part in parts)
    return parts


def _image(source: Mapping[str, Any]) -> Item:
    detail = source.get("detail")
    return {
        "type": "input_image",
        "image_url": image_url(source),
        "detail": detail if isinstance(detail, str) else "auto",
    }


_LEAST_OUTPUT_TOKENS = 16
"""Minimum for a response; the API refuses less."""


def build_body(
    request: ChatRequest, model: str, taste: Taste, config: OpenAIConfig
) -> dict[str, Any]:
    """The body of a normalised request."""
    limit = first_given(request.max_output_tokens, config.max_tokens)
    reasoning = {
        "effort": first_given(request.reasoning_effort, config.reasoning_effort),
        "summary": config.reasoning_summary,
    }
    reasoning = {key: value for key, value in reasoning.items() if value is not None}
    optional = {
        "max_output_tokens": None if limit is None else max(limit, _LEAST_OUTPUT_TOKENS),
        "temperature": first_given(request.temperature, config.temperature),
        "top_p": first_given(request.top_p, config.top_p),
        "reasoning": reasoning or None,
        "include": [ENCRYPTED_REASONING] if taste.encrypted_reasoning else None,
    }
    found = _found_tools(request) if taste.tool_references else None
    return {
        "model": model,
        "input": wire_input(request.messages, found),
        "stream": True,
        "store": False,
        **{key: value for key, value in optional.items() if value is not None},
        **_wire_options(request, found),
        **config.extra_body,
    }


_ENDS = frozenset(("response.completed", "response.incomplete", "response.failed"))
_TEXTS = {
    "response.output_text.delta": "text",
    "response.refusal.delta": "text",
    "response.reasoning_summary_text.delta": "thinking",
    "response.reasoning_text.delta": "thinking",
    "response.function_call_arguments.delta": "tool_call",
}
_KINDS = {"reasoning": "thinking", "function_call": "tool_call", "tool_search_call": "tool_call"}
_BETWEEN_SUMMARIES = "\n\n"
_MAX_TYPE = 100
"""Characters of the name of an unknown item type that are kept."""


class Key(NamedTuple):
    """The position of a block in the output: its item, and the part of a message."""

    item: int
    part: int = 0


class ResponsesStream(OpenAIStream):
    """An answer of the Responses API."""

    def __init__(self, *, provider: str, model: str, names: Mapping[str, str]) -> None:
        super().__init__(provider=provider, model=model, names=names)
        self._response: Item = {}
        self._omitted: list[str] = []
        self._refused = False
        self._open: dict[Key, StreamedBlock] = {}
        self._finished: dict[int, dict[str, Any]] = {}

    def events_in(self, answer: Mapping[str, Any]) -> Iterator[Item]:
        for index, item in enumerate(answer["output"]):
            yield {"type": "response.output_item.done", "item": item, "output_index": index}
        kind = f"response.{answer['status']}"
        if kind not in _ENDS:
            raise self._to_error(answer.get("error"))
        yield {"type": kind, "response": answer}

    @property
    def content(self) -> list[dict[str, Any]]:
        return [self._finished[index] for index in sorted(self._finished)]

    @property
    def finish_reason(self) -> str:
        if self._refused or self._stop_reason() == "content_filter":
            return "content_filter"
        if self._response.get("status") == "incomplete":
            return "length"
        calls = any(block["type"] == "tool_call" for block in self.content)
        return "tool_calls" if calls else "stop"

    def usage(self) -> Usage | None:
        return read_usage(to_mapping(self._response.get("usage")), "input", "output")

    def metadata(self, request_id: str | None) -> dict[str, Any]:
        metadata: dict[str, Any] = {
            "model": self.model,
            "provider": self._provider,
            "stop_reason": self._stop_reason(),
            "request_id": request_id,
            "response_id": text_or_none(self._response.get("id")),
            "omitted_items": self._omitted,
        }
        if self._refused:
            refusals = [block["text"] for block in self.content if block.get("refusal")]
            metadata["refusal"] = "".join(refusals)
        return {key: value for key, value in metadata.items() if value not in (None, [])}

    def _stop_reason(self) -> str:
        """The service's own reason for the end of the response."""
        reason = to_mapping(self._response.get("incomplete_details")).get("reason")
        for value in (reason, self._response.get("status")):
            if isinstance(value, str) and value:
                return value
        return "completed"

    # -- events ------------------------------------------------------------------------------

    def _take(self, event: Item, chunks: list[BlockChunk]) -> None:
        kind = event["type"]
        if kind in _TEXTS:
            self._delta(event, _TEXTS[kind], chunks)
        elif kind == "response.output_item.added":
            self._handle_added(event["item"], Key(event["output_index"]), chunks)
        elif kind == "response.reasoning_summary_part.added":
            block = self._open.get(Key(event["output_index"]))
            if block is not None and block.texts:
                block.write(_BETWEEN_SUMMARIES, chunks)
        elif kind == "response.output_item.done":
            self._handle_done(event["item"], event["output_index"], chunks)
        elif kind in ("response.created", "response.in_progress"):
            self._report(event["response"])
        elif kind in _ENDS:
            self._report(event["response"])
            if self._response.get("status") in ("failed", "cancelled") or kind.endswith("failed"):
                raise self._to_error(self._response.get("error"))
            self._end_the_rest(chunks)
            self.is_whole = self.has_ended = True
        elif kind == "error":
            raise self._to_error(event.get("error") or event)

    def _report(self, response: Any) -> None:
        """Take over the service's report on the whole response: id, model, status, usage."""
        if not isinstance(response, dict):
            raise TypeError("response")
        self._response = cast("Item", response)
        self.model = text_or_none(self._response.get("model")) or self.model
        self.service_tier = text_or_none(self._response.get("service_tier"))

    def _handle_added(self, item: Item, key: Key, chunks: list[BlockChunk]) -> None:
        kind = _KINDS.get(item["type"])
        if kind is None:
            return  # a message begins with its first part
        block = self._start(key, kind)
        if kind == "tool_call":
            block.id = self._call_id(item.get("call_id"))
            is_search = item["type"] == "tool_search_call"
            block.name = self._tool_name(TOOL_SEARCH if is_search else item.get("name"))
        chunks.append(block.start())

    def _delta(self, event: Item, kind: str, chunks: list[BlockChunk]) -> None:
        key = Key(event["output_index"], event["content_index"] if kind == "text" else 0)
        block = self._open.get(key)
        if block is None:
            if kind == "tool_call":
                return  # of an item that never began
            block = self._start(key, kind)
            chunks.append(block.start())
        if text := text_in(event, "delta"):
            block.write(text, chunks)

    def _handle_done(self, item: Item, at: int, chunks: list[BlockChunk]) -> None:
        if item["type"] == "message":
            for part, content in enumerate(item.get("content") or ()):
                finished = self._message_part(item, content)
                if finished is not None:
                    self._end(Key(at, part), "text", finished, finished["text"], chunks)
        elif item["type"] == "reasoning":
            texts = [text_in(p, "text") for p in item.get("summary") or item.get("content") or ()]
            finished = _reasoning_block(item)
            self._end(Key(at), "thinking", finished, _BETWEEN_SUMMARIES.join(texts), chunks)
        elif item["type"] in ("function_call", "tool_search_call"):
            if Key(at) not in self._open:
                self._handle_added(item, Key(at), chunks)
            arguments = item["arguments"]
            text = arguments if isinstance(arguments, str) else json.dumps(arguments)
            self._end(Key(at), "tool_call", self._open[Key(at)].call(text), text, chunks)
        else:
            self._omitted.append(str(item["type"])[:_MAX_TYPE])

    def _message_part(self, item: Item, content: Item) -> dict[str, Any] | None:
        phase = {"phase": item["phase"]} if isinstance(item.get("phase"), str) else {}
        if content["type"] == "refusal":
            self._refused = True
            return {"type": "text", "text": text_in(content, "refusal"), "refusal": True, **phase}
        if content["type"] != "output_text":
            return None
        annotations = content.get("annotations")
        cited = {"citations": annotations} if annotations and is_clean(annotations) else {}
        return {"type": "text", "text": text_in(content, "text"), **cited, **phase}

    # -- blocks ------------------------------------------------------------------------------

    def _start(self, key: Key, kind: str) -> StreamedBlock:
        block = self._open[key] = StreamedBlock(len(self._blocks), kind)
        self._blocks.append(block)
        return block

    def _end(
        self,
        key: Key,
        kind: str,
        finished: dict[str, Any] | None,
        text: str,
        chunks: list[BlockChunk],
    ) -> None:
        block = self._open.pop(key, None)
        if block is None:
            block = self._start(key, kind)
            del self._open[key]
            chunks.append(block.start())
        if text and not block.texts:  # a service that sends items whole
            block.write(text, chunks)
        if finished is not None:
            self._finished[block.index] = finished
        content = finished
        if kind == "thinking":
            content = {"type": "thinking", "thinking": block.text}
        chunks.append(block.end(content))

    def _end_the_rest(self, chunks: list[BlockChunk]) -> None:
        """End the blocks whose items the service did not end, as in a response that was cut off."""
        for key, block in list(self._open.items()):
            text = block.text
            finished: dict[str, Any] | None = {"type": "text", "text": text}
            if block.kind == "tool_call":
                finished = block.call(text)
            elif block.kind == "thinking":
                finished = None  # Half a reasoning item is refused when it is sent back.
            self._end(key, block.kind, finished, text, chunks)

    # -- errors ------------------------------------------------------------------------------

    def _to_error(self, error: Any) -> LLMError:
        details: Item = dict(to_mapping(error))
        code = str(details.get("code") or "")
        if code.startswith(("invalid_", "image_", "unsupported_", "empty_")):
            # Error codes about the request's content; the API gives no type with them.
            details["type"] = "invalid_request_error"
        if code.endswith("_policy") or "policy_violation" in code:
            details["code"] = "content_policy_violation"
        details.pop("sequence_number", None)
        return error_for_body({"error": details}, provider=self._provider, model=self._model)


def _reasoning_block(item: Item) -> dict[str, Any] | None:
    """The item as it is sent back; None if the service could not have sent it."""
    block = {
        "type": "reasoning",
        "id": item.get("id"),
        "summary": item.get("summary") or [],
        "content": item.get("content") or [],
        "encrypted_content": item.get("encrypted_content"),
    }
    opaque = (block["id"], block["encrypted_content"])
    valid = all(value is None or isinstance(value, str) for value in opaque)
    # What is encrypted belongs to its item.
    valid = valid and bool(block["id"] or not block["encrypted_content"])
    kinds = ((block["summary"], "summary_text"), (block["content"], "reasoning_text"))
    for parts, kind in kinds:
        valid = valid and isinstance(parts, list) and all(_is_part(part, kind) for part in parts)
    if not valid or not is_clean(block):
        return None
    return {key: value for key, value in block.items() if value is not None}


def _is_part(part: object, kind: str) -> bool:
    fields = cast("Item", part) if isinstance(part, dict) else {}
    return fields.get("type") == kind and isinstance(fields.get("text"), str)


RESPONSES = API("/responses", "/v1/responses", ResponsesStream)
