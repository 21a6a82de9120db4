"""The body of a request to the Messages API, made from a `ChatRequest` and the settings.

Anything a model does not support is left out or replaced with the nearest equivalent and reported
in the response's `degradation`, instead of being sent and refused.
"""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, cast

from amplifier_core.message_models import ChatRequest, Degradation, Message, ToolSpec
from amplifier_modules._shared.history.values import TOOL_SEARCH, found_tools, portable_id
from amplifier_modules._shared.providers.catalogue import Catalogue, Model
from amplifier_modules._shared.providers.settings import first_given
from amplifier_modules.provider_anthropic.config import AnthropicConfig, ThinkingConfig
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.price_lists import PriceList
from amplifier_support.text import lazy_pattern

Block = dict[str, Any]

_DATA_URL = lazy_pattern(r"data:(?P<media_type>image/[\w.+-]+);base64,(?P<data>.*)", re.DOTALL)
_SYSTEM_ROLES = frozenset({"system", "developer"})


def _split_system(messages: list[Message]) -> tuple[list[Block], list[Message]]:
    """The system prompt's blocks, from the leading messages, and the conversation after them."""
    begin = next(
        (at for at, m in enumerate(messages) if m.role not in _SYSTEM_ROLES), len(messages)
    )
    system = [block for message in messages[:begin] for block in _text_blocks(message)]
    return system, messages[begin:]


def conversation(
    messages: Iterable[Message], references: Mapping[str, list[str]]
) -> list[dict[str, Any]]:
    """Messages for the API in user and assistant turns; consecutive messages of a role are joined.

    Tool results become blocks of a user message. A system message within the conversation becomes a
    marked text in the user's turn at its place: moving it to the front would change the start of
    every later request and so lose the prompt cache.

    Args:
        messages: Normalised, without the system prompt.
        references: The tools to refer to instead of a search's result, by the id of its call.
    """
    turns: list[dict[str, Any]] = []
    for message in messages:
        role = "assistant" if message.role == "assistant" else "user"
        blocks = _blocks(message, references)
        if not blocks:
            continue
        if turns and turns[-1]["role"] == role:
            turns[-1]["content"] += blocks
        else:
            turns.append({"role": role, "content": blocks})
    return turns


_REMINDER = "<system-reminder"


def _mark_for_caching(
    system: list[Block], tools: list[Block], turns: list[dict[str, Any]], *, long: bool
) -> None:
    """Set the four breakpoints a request may have: tools, system, and two in the conversation.

    The one at the end writes the cache for the next request; the one on the previous user message
    reads what the last request wrote, even if the API's lookback is exceeded.

    Args:
        long: Whether the cache lives for an hour instead of the usual 5 minutes.
    """
    mark = {"type": "ephemeral", "ttl": "1h"} if long else {"type": "ephemeral"}
    # Tools that are loaded later are not in the prefix, and may have no mark.
    tools = [tool for tool in tools if not tool.get("defer_loading")]
    for blocks in (tools, system):
        if blocks:
            blocks[-1]["cache_control"] = mark
    users = [turn for turn in turns if turn["role"] == "user"]
    for turn in users[-2:]:
        _last_that_stays(turn["content"])["cache_control"] = mark


def _last_that_stays(blocks: list[Block]) -> Block:
    """The last block that later requests have, too: reminders of hooks are often for one request only."""
    kept = (block for block in reversed(blocks) if not block.get("text", "").startswith(_REMINDER))
    return next(kept, blocks[-1])


def _blocks(message: Message, references: Mapping[str, list[str]]) -> list[Block]:
    if message.role == "tool":
        return [_tool_result(message, references.get(message.tool_call_id or "", ()))]
    if message.role in _SYSTEM_ROLES:
        notes = _text_blocks(message)
        return [_text(f"<system-reminder>\n{note['text']}\n</system-reminder>") for note in notes]
    content = message.content
    if isinstance(content, str):
        if message.role == "assistant" and message.get("prefill"):
            content = content.rstrip()  # the API refuses an answer's beginning that ends in space
        return [] if not content or content.isspace() else [_text(content)]
    return [wire for block in content if (wire := _block(block)) is not None]


def _block(block: Any) -> Block | None:
    match block.type:
        case "text":
            return _text(block.text) if block.text.strip() else None
        case "thinking":
            if block.signature is None:
                return None
            return {
                "type": "thinking",
                "thinking": block.thinking,
                "signature": block.signature,
            }
        case "redacted_thinking":
            return {"type": "redacted_thinking", "data": block.data}
        case "tool_call":
            return {
                "type": "tool_use",
                "id": portable_id(block.id),
                "name": portable_id(block.name),
                "input": block.input,
            }
        case "image":
            return {"type": "image", "source": _image_source(block.source)}
        case _:
            return None  # another vendor's reasoning


def _text(text: str) -> Block:
    return {"type": "text", "text": text}


def _text_blocks(message: Message) -> list[Block]:
    content = message.content
    texts = (
        [content]
        if isinstance(content, str)
        else [block.text for block in content if block.type == "text"]
    )
    return [_text(text) for text in texts if text.strip()]


def _tool_result(message: Message, references: Iterable[str]) -> Block:
    content = message.content
    result: Block = {
        "type": "tool_result",
        "tool_use_id": portable_id(message.tool_call_id or ""),
    }
    if references:
        result["content"] = [
            {"type": "tool_reference", "tool_name": portable_id(name)} for name in references
        ]
    elif isinstance(content, str):
        result["content"] = content
    else:
        result["content"] = [wire for block in content if (wire := _block(block)) is not None]
    # The API accepts no images in a result that is marked as an error.
    if message.get("is_error") and not _has_image(result["content"]):
        result["is_error"] = True
    return result


def _has_image(content: Any) -> bool:
    return isinstance(content, list) and any(
        block["type"] == "image" for block in cast("list[Block]", content)
    )


def _image_source(source: dict[str, Any]) -> dict[str, Any]:
    """`{type: base64, media_type, data}`, `{type: url, url}` or `{type: file, file_id}`, no more."""
    if data_url := _DATA_URL.fullmatch(source.get("url", "")):
        return {"type": "base64", **data_url.groupdict()}
    kind = source.get("type") or ("url" if "url" in source else "base64")
    keys = {"url": ("url",), "file": ("file_id",)}.get(kind, ("media_type", "data"))
    return {"type": kind, **{key: source[key] for key in keys if key in source}}


UNKNOWN_CONTEXT_WINDOW = 200_000
UNKNOWN_MAX_OUTPUT = 8_192
USUAL_MAX_OUTPUT = 32_000

# A snapshot's date, a cloud's or a gateway's spelling: claude-x-20250101, claude-x@20250101,
# us.anthropic.claude-x-v1:0, anthropic/claude-x.
_SPELLING = lazy_pattern(
    r"(?:[a-z-]+[./])*(?P<id>claude-.+?)(?:[-@]\d{8}|-latest|@latest|@default)?(?:-v\d+(?::\d+)?)?"
)


def known_models() -> Iterator[Model]:
    """All models of the catalogue, the default first."""
    return iter(_catalogue())


def find_model(model_id: str) -> Model | None:
    """The model with this id, ignoring snapshot date and cloud spelling; None if unknown."""
    return _catalogue().find(listed_names(model_id))


def listed_names(model_id: str) -> list[str]:
    """The id that lists of models have for this one: without snapshot date and cloud spelling."""
    spelled = _SPELLING.fullmatch(model_id)
    return [spelled["id"]] if spelled else []


def shipped_prices() -> PriceList:
    """The prices of the catalogue."""
    return _catalogue().price_list


class Features(NamedTuple):
    """The features of a model. Unknown models are assumed to support everything.

    Attributes:
        known: Whether the model is in the catalogue.
        thinking: Accepted values of `thinking.type`.
        thinks_by_default: Whether it thinks by default.
        efforts: Accepted efforts, rising; None where unknown.
        sampling: Whether it takes temperature and top_p.
        forced_tools: Whether a tool call can be forced.
        checks_prefix: Whether it refuses returned thinking if something before it has changed.
        tool_references: Whether a reference in the conversation can load a tool.
    """

    known: bool
    thinking: Sequence[str] = ("enabled", "adaptive", "disabled")
    thinks_by_default: bool = False
    efforts: Sequence[str] | None = None
    sampling: bool = True
    forced_tools: bool = True
    checks_prefix: bool = False
    tool_references: bool = True


def read_features(model: Model | None) -> Features:
    """The features of a model of the catalogue, or of an unknown one."""
    return Features(known=False) if model is None else Features(known=True, **model.features)


@lru_cache(maxsize=1)
def _catalogue() -> Catalogue:
    return Catalogue(Path(__file__).with_name("models.json"))


NEWEST_VERSION = "2026-10-21"
SAMPLING_VERSION = "2023-06-01"
"""The last version that supports temperature and top_p."""

_BINDING_BETA = "thinking-binding-controls-2026-08-01"
_LEAST_BUDGET = 1024
_AS_USUAL = ThinkingConfig.model_construct()
_USUAL_BUDGET = 8192
_BUDGET_OF_EFFORT = {"low": 2048, "medium": 8192, "high": 16384, "xhigh": 24576, "max": 32768}
_EFFORTS = tuple(_BUDGET_OF_EFFORT)
_JSON_ONLY = "Answer with one JSON value and nothing else: no prose, no code fence."
_FORCING = frozenset({"any", "tool"})


WEB_SEARCH = "web_search"
_WEB_SEARCH_VERSION = "web_search_20250305"


class Prepared(NamedTuple):
    """A request ready to be sent.

    Attributes:
        body: Of `POST /v1/messages`, without `stream`.
        betas: For the `anthropic-beta` header.
        api_version: For the `anthropic-version` header.
        degradations: What was requested but is not in the body.
    """

    body: dict[str, Any]
    betas: list[str]
    api_version: str
    degradations: list[Degradation]

    @property
    def model(self) -> str:
        """The model to use."""
        return self.body["model"]

    @property
    def headers(self) -> dict[str, str]:
        """The headers that belong to the body."""
        version = {"anthropic-version": self.api_version}
        return version | ({"anthropic-beta": ",".join(self.betas)} if self.betas else {})


def default_max_tokens(config: AnthropicConfig, model_id: str) -> int:
    """The longest response, if the request does not set it."""
    model = find_model(model_id)
    limit = model.max_output_tokens if model else UNKNOWN_MAX_OUTPUT
    return config.max_tokens or min(USUAL_MAX_OUTPUT, limit)


def prepare(request: ChatRequest, config: AnthropicConfig) -> Prepared:
    """The body for a normalised request whose `model` is set."""
    return _Builder(request, config).build()


class _Builder:
    def __init__(self, request: ChatRequest, config: AnthropicConfig) -> None:
        self.request = request
        self.config = config
        self.model_id = request.model or config.model
        self.model = find_model(self.model_id)
        self.features = read_features(self.model)
        self.betas = list(config.beta)
        self.degradations: list[Degradation] = []

    def build(self) -> Prepared:
        system, messages = _split_system(self.request.messages)
        tool_refs = self._found_tools()
        turns = conversation(messages, tool_refs)
        tools, choice = self._tools(turns, {name for names in tool_refs.values() for name in names})
        effort = self._effort()
        body: dict[str, Any] = {
            "model": self.model_id,
            "max_tokens": self._max_tokens(),
            "messages": turns,
        }
        thinking = self._thinking(body["max_tokens"], effort, choice)
        sampling = self._sampling(thinking)
        output = self._output(system, self._fitting_effort(effort, thinking))
        if self.config.prompt_caching:
            _mark_for_caching(system, tools, turns, long=self.config.prompt_caching == "1h")
        optional = {
            "system": system,
            "tools": tools,
            "tool_choice": choice,
            "thinking": thinking,
            "output_config": output,
            "stop_sequences": [stop for stop in self.request.stop or () if stop.strip()],
            "metadata": self._metadata(),
            **sampling,
        }
        body |= {key: value for key, value in optional.items() if value not in (None, [], {})}
        version = SAMPLING_VERSION if sampling else NEWEST_VERSION
        return Prepared(body, self.betas, self.config.api_version or version, self.degradations)

    # -- limits and sampling -----------------------------------------------------------------

    def _max_tokens(self) -> int:
        asked = self.request.max_output_tokens or default_max_tokens(self.config, self.model_id)
        limit = self.model.max_output_tokens if self.model else asked
        if asked > limit:
            self._degrade(f"max_output_tokens={asked}", str(limit), "the model's limit")
        return min(asked, limit)

    def _sampling(self, thinking: dict[str, Any] | None) -> dict[str, float]:
        asked = {
            name: value
            for name in ("temperature", "top_p")
            if (value := first_given(getattr(self.request, name), getattr(self.config, name)))
            is not None
        }
        if not asked:
            return {}
        is_thinking = thinking is not None and thinking["type"] != "disabled"
        if not self.features.sampling or is_thinking:
            reason = "not supported with thinking" if is_thinking else "not supported by the model"
            for name, value in asked.items():
                self._degrade(f"{name}={value}", "the model's own", reason)
            return {}
        if len(asked) == 2:
            value = asked.pop("top_p")
            self._degrade(f"top_p={value}", "temperature alone", "only one of them can be set")
        return asked

    # -- thinking and effort -----------------------------------------------------------------

    def _effort(self) -> str | None:
        asked = self.request.reasoning_effort or self.config.effort
        return {"minimal": "low"}.get(asked, asked) if asked else None

    def _thinking(
        self, max_tokens: int, effort: str | None, choice: dict[str, Any] | None
    ) -> dict[str, Any] | None:
        config = self.config.thinking
        if choice and choice["type"] in _FORCING:
            if config and config.enabled:
                self._degrade("thinking", "off", "a forced tool call allows none")
            return self._thinking_off()
        if effort == "none" or (config and not config.enabled):
            return self._thinking_off(asked=True)
        types = self.features.thinking
        if config is None:
            if self.features.thinks_by_default:
                return self._adaptive(_AS_USUAL)
            if effort in _BUDGET_OF_EFFORT and self.features.efforts == []:
                return self._budget(_BUDGET_OF_EFFORT[effort], max_tokens)
            return None
        takes_budget = "enabled" in types
        if config.budget_tokens is not None and not takes_budget:
            asked = f"thinking budget of {config.budget_tokens}"
            self._degrade(asked, "adaptive thinking", "the model takes no budget")
        if takes_budget and (
            config.budget_tokens is not None or config.type == "enabled" or "adaptive" not in types
        ):
            return self._budget(config.budget_tokens or _USUAL_BUDGET, max_tokens)
        return self._adaptive(config)

    def _adaptive(self, config: ThinkingConfig) -> dict[str, Any]:
        thinking: dict[str, Any] = {"type": "adaptive", "display": config.display}
        over_http = self.config.transport == "http"
        if self.features.checks_prefix and config.drop_changed and over_http:
            # Hooks and compaction change the text before earlier thinking.
            thinking["block_binding"] = {"prefix_mismatch_behavior": "drop_block"}
            if _BINDING_BETA not in self.betas:
                self.betas.append(_BINDING_BETA)
        return thinking

    def _budget(self, budget: int, max_tokens: int) -> dict[str, Any] | None:
        fitting = min(budget, max_tokens - 1)
        if fitting < _LEAST_BUDGET:
            self._degrade(
                f"thinking budget of {budget}", "no thinking", "max_tokens leaves no room"
            )
            return None
        if fitting < budget:
            self._degrade(f"thinking budget of {budget}", str(fitting), "max_tokens leaves no more")
        return {"type": "enabled", "budget_tokens": fitting}

    def _thinking_off(self, *, asked: bool = False) -> dict[str, Any] | None:
        if not self.features.thinks_by_default:
            # An unknown model may think by default, so thinking is turned off explicitly.
            return {"type": "disabled"} if asked and not self.features.known else None
        for kind in ("disabled", "between_tools"):
            if kind in self.features.thinking:
                return {"type": kind}
        if asked:
            self._degrade("no thinking", "thinking", "the model always thinks")
        return self._adaptive(_AS_USUAL) if asked else None

    def _fitting_effort(self, effort: str | None, thinking: dict[str, Any] | None) -> str | None:
        if effort is None or effort == "none":
            return None
        accepted = self.features.efforts
        if thinking and thinking["type"] in ("disabled", "between_tools"):
            accepted = [e for e in accepted or _EFFORTS if e in _EFFORTS[:3]]
        if accepted is None or effort in accepted:
            return effort
        if not accepted and thinking and thinking["type"] == "enabled":
            return None  # set by the budget instead
        lower = [e for e in accepted if e in _EFFORTS[: _rank(effort)]]
        nearest = (lower or accepted or [None])[-1 if lower else 0]
        self._degrade(f"effort {effort}", nearest or "none", "not supported by the model")
        return nearest

    # -- output, tools, the rest -------------------------------------------------------------

    def _output(self, system: list[Block], effort: str | None) -> dict[str, Any]:
        output: dict[str, Any] = {"effort": effort} if effort else {}
        form = self.request.response_format
        if form is None or form.type == "text":
            return output
        if form.type == "json_schema":
            output["format"] = {
                "type": "json_schema",
                "schema": _close_objects(_schema(form.json_schema)),
            }
        else:
            system.append({"type": "text", "text": _JSON_ONLY})
            reason = "the API forces JSON only with a schema"
            self._degrade("response_format json", "an instruction to answer in JSON", reason)
        return output

    def _found_tools(self) -> dict[str, list[str]]:
        """The tools that searches have found, by the id of the call.

        The API loads a tool where the conversation refers to it. Otherwise the tool would change the start
        of the request: the prompt cache would be lost, and models that check it would lose their thinking.
        """
        offered = {tool.name for tool in self.request.tools or ()}
        usable = self.config.tool_references and self.features.tool_references
        if not usable or TOOL_SEARCH not in offered:  # one tool must be loaded from the start
            return {}
        references = {
            message.tool_call_id or "": [name for name in found_tools(message) if name in offered]
            for message in self.request.messages
        }
        return {call: names for call, names in references.items() if names}

    def _tools(
        self, turns: list[dict[str, Any]], references: Container[str]
    ) -> tuple[list[Block], dict[str, Any] | None]:
        tools = [_tool(spec, deferred=spec.name in references) for spec in self.request.tools or ()]
        # The API requires a description of every tool in the conversation, even if none may be used.
        if not tools and (used := _used_tools(turns)):
            return [{"name": name, "input_schema": {"type": "object"}} for name in used], {
                "type": "none"
            }
        choice = _choice(self.request.tool_choice) if tools else None
        if choice and "name" in choice:
            choice["name"] = portable_id(choice["name"])
        if choice and choice["type"] in _FORCING and not self.features.forced_tools:
            asked = choice.get("name", "any tool")
            self._degrade(f"a call of {asked}", "the model's choice", "the model cannot be forced")
            choice = {"type": "auto"}
        return [*self._web_search(tools), *tools], choice

    def _web_search(self, tools: list[Block]) -> list[Block]:
        """The service's own tool, unless another one has its name."""
        config = self.config.web_search
        if config is None or not config.enabled:
            return []
        if any(tool["name"] == WEB_SEARCH for tool in tools):
            reason = "two tools cannot have one name"
            self._degrade("web_search of the service", "the tool of that name", reason)
            return []
        search: Block = {"type": _WEB_SEARCH_VERSION, "name": WEB_SEARCH}
        if config.max_uses is not None:
            search["max_uses"] = config.max_uses
        if config.user_location:
            search["user_location"] = {"type": "approximate", **config.user_location}
        return [search]

    def _metadata(self) -> dict[str, str] | None:
        user = (self.request.metadata or {}).get("user_id")
        return {"user_id": user} if isinstance(user, str) else None

    def _degrade(self, requested: str, actual: str, reason: str) -> None:
        self.degradations.append(Degradation(requested=requested, actual=actual, reason=reason))


def _rank(effort: str) -> int:
    return _EFFORTS.index(effort) if effort in _EFFORTS else len(_EFFORTS)


def _tool(spec: ToolSpec, *, deferred: bool) -> Block:
    schema = {"type": "object", **spec.parameters}
    tool: Block = {"name": portable_id(spec.name), "input_schema": schema}
    if deferred:
        tool["defer_loading"] = True
    if spec.description:
        tool["description"] = spec.description
    for key in ("strict", "input_examples", "eager_input_streaming"):
        if spec.get(key) is not None:
            tool[key] = spec[key]
    return tool


def _used_tools(turns: list[dict[str, Any]]) -> Iterable[str]:
    blocks = (block for turn in turns for block in turn["content"])
    return dict.fromkeys(block["name"] for block in blocks if block["type"] == "tool_use")


def _choice(asked: str | dict[str, Any] | None) -> dict[str, Any] | None:
    """The API's form of `auto`, `none`, `any` or `required`, a tool's name, or either mapping."""
    if asked is None:
        return None
    if isinstance(asked, str):
        known = {"auto": "auto", "none": "none", "any": "any", "required": "any"}
        return {"type": known[asked]} if asked in known else {"type": "tool", "name": asked}
    if asked.get("type") == "function":
        function = cast("dict[str, Any]", asked.get("function") or asked)
        return {"type": "tool", "name": function["name"]}
    return {**asked, "type": "any"} if asked.get("type") == "required" else dict(asked)


def _schema(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema itself, unwrapped from `{name, schema, strict}` if needed."""
    inner = schema.get("schema")
    return cast("dict[str, Any]", inner) if isinstance(inner, dict) else schema


def _close_objects(schema: Any) -> Any:
    """The schema with every object closed to further properties, as the API requires."""
    if isinstance(schema, list):
        return [_close_objects(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    closed = {key: _close_objects(value) for key, value in cast("dict[str, Any]", schema).items()}
    kinds = closed.get("type")
    if "properties" in closed and (kinds == "object" or isinstance(kinds, list)):
        closed.setdefault("additionalProperties", False)
    return closed
