"""A connection's client of the SDK, which takes seconds to import: `hub` loads this in a thread."""

from __future__ import annotations

import json
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Self, TypeVar

from mcp import Client, Implementation, MCPError
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import (
    CONNECTION_CLOSED,
    URL_ELICITATION_REQUIRED,
    ListResourcesResult,
    LoggingMessageNotificationParams,
    PaginatedResult,
    Request,
    Result,
    ToolListChangedNotification,
)
from mcp_types.methods import parse_server_result
from pydantic import ValidationError

from amplifier_extras.tool_mcp.connection import (
    CallLost,
    Offers,
    ServerRefused,
    SessionGone,
    error_text,
    read_pages,
    shorten,
)
from amplifier_extras.tool_mcp.skills import EXTENSION, ServedSkill, parse_entry
from amplifier_modules._shared.skills import InvalidSkill
from amplifier_support.delegate import Delegate
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.text import cut_text, printable

ResultT = TypeVar("ResultT")
ExtensionResultT = TypeVar("ExtensionResultT", bound=Result)

_MAX_PAGES = 50
_MAX_ENTRIES = 5000
"""Tools, or skills, that one server may list."""
_MAX_CHARACTERS = 16_000_000
"""Characters that all of them may have together."""
_MAX_TOOL = 1_000_000
"""Characters that one tool may have as JSON."""
_MAX_SHOWN = 200
"""Characters of an invalid name or URI in a message."""
# The SDK's messages, worded as a server's response, when there was none.
_SESSION_GONE = "Session terminated"
_CLOSED, _CUT_OFF = "Connection closed", "SSE stream"


class _SkillPage(PaginatedResult):
    skills: list[dict[str, Any]]


class _SkillResult(Result):
    skill: dict[str, Any]


class SkillsClient(Client):
    """The SDK's client with the requests of the extension for skills."""

    async def list_skills(self, *, cursor: str | None = None) -> _SkillPage:
        """Return a page of the entries of skills."""
        return await self._request("skills/list", _SkillPage, cursor=cursor)

    async def get_skill(self, uri: str) -> dict[str, Any]:
        """Return the entry of a skill."""
        return (await self._request("skills/get", _SkillResult, uri=uri)).skill

    async def read_directory(self, uri: str, *, cursor: str | None = None) -> ListResourcesResult:
        """Return a page of the resources in a directory."""
        return await self._request(
            "resources/directory/read", ListResourcesResult, uri=uri, cursor=cursor
        )

    async def _request(
        self, method: str, result: type[ExtensionResultT], **params: str | None
    ) -> ExtensionResultT:
        given = {key: value for key, value in params.items() if value is not None}
        request = Request[dict[str, Any], str](method=method, params=given)
        return await self.session.send_request(request, result)


@asynccontextmanager
async def _screened(transport: Any, screen: Callable[[Any], None]) -> AsyncGenerator[Any]:
    """A transport of the SDK that passes each incoming message through a function."""
    async with transport as (incoming, outgoing):
        yield _ScreenedStream(incoming, _screen=screen), outgoing


class _ScreenedStream(Delegate):
    async def __aenter__(self) -> Self:
        await self._inner.__aenter__()
        return self

    async def __aexit__(self, *error: Any) -> Any:
        return await self._inner.__aexit__(*error)

    async def __aiter__(self) -> AsyncIterator[Any]:
        async for message in self._inner:
            self._screen(message)
            yield message


class ServerClient:
    """The client of one connection, an asynchronous context manager.

    Args:
        server: The server's name, for messages.
        transport: The SDK's.
        legacy: Do not ask for newer protocols, at which old servers may crash.
        on_log: Called with the level, the logger and the data of what the server logs.
        on_question: Called with a question of the server to the user; returns the answer.
        on_tools_changed: Called when the server has changed its tools.
    """

    def __init__(
        self,
        server: str,
        transport: Any,
        *,
        legacy: bool,
        on_log: Callable[[str, str | None, Any], Awaitable[None]],
        on_question: Callable[[Any], Awaitable[Any]],
        on_tools_changed: Callable[[], None],
    ) -> None:
        self._server = server
        self._log = on_log
        self._ask = on_question
        self._on_tools_changed = on_tools_changed
        self._protocol: str | None = None
        self._tool_problems: list[str] = []
        self._client = SkillsClient(
            _screened(transport, self._remove_invalid_tools),
            mode="legacy" if legacy else "auto",
            cache=None,
            log_level="info",
            logging_callback=self._on_log,
            elicitation_callback=self._on_question,
            message_handler=self._on_message,
            client_info=_client_info(),
        )

    async def __aenter__(self) -> Self:
        await self._client.__aenter__()
        self._protocol = self._client.protocol_version
        return self

    async def __aexit__(self, *error: Any) -> None:
        await self._client.__aexit__(*error)

    async def answer(self, use: Callable[[SkillsClient], Awaitable[ResultT]]) -> ResultT:
        """Run `use` with the SDK's client and return its result.

        Raises:
            TimeoutError: It took too long.
            SessionGone: The server no longer knows the session.
            ServerProblem: There is no response, or an error response.
        """
        try:
            return await use(self._client)
        # Means the same as the limit of the caller.
        except TimeoutError:
            raise
        except MCPError as error:
            if error.code == URL_ELICITATION_REQUIRED:
                raise await self._ask_first(error) from error
            raise self._named(error) from error
        # The SDK's other errors concern this one response, which does not match its schema or
        # requests something that is not offered.
        except Exception as error:
            raise ServerRefused(
                f"invalid response of the server {self._server}: {error_text(error)}"
            ) from error

    async def offers(self) -> Offers:
        """Return the server's tools, resources, prompts and skills."""
        has = self._client.server_capabilities
        self._tool_problems = []
        tools = [] if has.tools is None else await self._list_tools()
        extension = (has.extensions or {}).get(EXTENSION)
        offers = Offers(
            tools,
            has.resources is not None,
            has.prompts is not None,
            extension is not None,
            to_mapping(extension).get("directoryRead") is True,
            problems=[*dict.fromkeys(self._tool_problems)],
        )
        return await self._with_skills(offers) if offers.has_skills else offers

    async def _list_tools(self) -> list[Any]:
        """Return the valid tools; each has a name of its own, by which changes are noticed."""
        tools: dict[str, Any] = {}
        async for tool in _read_list(self._client.list_tools, "tools", self._tool_problems):
            if tool.name in tools:
                self._tool_problems.append(f"the tool {_quote(tool.name)}: listed twice")
            tools.setdefault(tool.name, tool)
        return [*tools.values()]

    def _remove_invalid_tools(self, message: Any) -> None:
        """Take invalid tools out of a response: because of one, the SDK would refuse the others."""
        result = read_field(read_field(message, "message"), "result")
        tools: Any = to_mapping(result).get("tools")
        if self._protocol is None or not isinstance(tools, list):
            return
        valid: list[Any] = []
        for number, tool in enumerate(tools[:_MAX_ENTRIES], 1):
            if problem := _find_problem({**result, "tools": [tool]}, self._protocol):
                name = to_mapping(tool).get("name", f"number {number}")
                self._tool_problems.append(f"the tool {_quote(name)}: {problem}")
            else:
                valid.append(tool)
        if len(tools) > _MAX_ENTRIES:
            self._tool_problems.append(_beyond_limits("tools", _MAX_ENTRIES))
        result["tools"] = valid

    async def _with_skills(self, offers: Offers) -> Offers:
        skills: dict[str, ServedSkill] = {}
        problems = [*offers.problems]
        try:
            async for entry in _read_list(self._client.list_skills, "skills", problems):
                try:
                    skill = parse_entry(entry)
                    skills[skill.uri] = skill
                except InvalidSkill as error:
                    problems.append(f"the skill {_quote(entry.get('uri'))}: {error}")
        # The tools of the server can be used without its skills.
        except (MCPError, ValidationError) as error:
            problems.append(f"skills, which cannot be listed: {error_text(error)}")
        return offers._replace(skills=list(skills.values()), problems=problems)

    async def _ask_first(self, error: MCPError) -> ServerRefused:
        """Ask the user to open the pages that a call needs (2025-11-25); it can be made again then."""
        pages = UrlElicitationRequiredError.from_error(error.error).elicitations
        answers = [await self._ask(page) for page in pages]
        agreed = all(answer.action == "accept" for answer in answers)
        then = "Call it again when the user has finished." if agreed else "The user declined."
        reason = shorten("; ".join(page.message for page in pages))
        return ServerRefused(f"the user has to open a page of the server first: {reason}. {then}")

    def _named(self, error: MCPError) -> Exception:
        if error.message == _SESSION_GONE:
            return SessionGone()
        # Servers use the same code for their own errors.
        if error.code == CONNECTION_CLOSED and error.message.startswith((_CLOSED, _CUT_OFF)):
            return CallLost(
                f"the connection to the server {self._server} was lost during the call "
                f"({error.message}); whether it took effect is unknown",
                connection_ended=error.message == _CLOSED,
            )
        reason = shorten(error.message)
        return ServerRefused(f"the server {self._server} returned an error: {reason}")

    async def _on_log(self, params: LoggingMessageNotificationParams) -> None:
        await self._log(str(params.level), params.logger, params.data)

    async def _on_question(self, context: Any, params: Any) -> Any:
        return await self._ask(params)

    async def _on_message(self, message: Any) -> None:
        if isinstance(message, ToolListChangedNotification):
            self._on_tools_changed()


def _quote(name: Any) -> str:
    return cut_text(printable(str(name)), _MAX_SHOWN)


def _find_problem(page: dict[str, Any], protocol: str) -> str | None:
    """Return what is wrong with the tool of a page that has only one."""
    if (size := len(json.dumps(page["tools"]))) > _MAX_TOOL:
        return f"its {size} characters are more than {_MAX_TOOL}"
    try:
        parse_server_result("tools/list", protocol, page)
    except ValidationError as error:
        for each in error.errors(include_url=False, include_input=False):
            if each["loc"][:2] == ("tools", 0):
                field = ".".join(map(str, each["loc"][2:]))
                return f"{field}: {each['msg']}" if field else each["msg"]
    return None


async def _read_list(
    list_page: Callable[..., Awaitable[Any]], field: str, problems: list[str]
) -> AsyncIterator[Any]:
    """Yield the entries of a list up to the limits; adds to `problems` if there are more."""
    count, size, cursor = 0, 0, None
    async for page in read_pages(list_page, _MAX_PAGES):
        cursor = page.next_cursor
        for entry in getattr(page, field):
            size += len(str(entry))
            if count == _MAX_ENTRIES or size > _MAX_CHARACTERS:
                problems.append(_beyond_limits(field, count))
                return
            count += 1
            yield entry
    if cursor:
        problems.append(_beyond_limits(field, count))


def _beyond_limits(field: str, count: int) -> str:
    limits = f"{_MAX_ENTRIES} {field}, {_MAX_CHARACTERS} characters, {_MAX_PAGES} pages"
    return f"the {field} after the first {count}: the limits are {limits}"


def _client_info() -> Implementation:
    try:
        own = version("amplifier")
    except PackageNotFoundError:
        own = "0"
    return Implementation(name="amplifier", version=own)
