"""A connection's client of the SDK, which takes seconds to import: `hub` loads this in a thread."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
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
from amplifier_support.fields import to_mapping
from amplifier_support.text import cut_text, printable

ResultT = TypeVar("ResultT")
ExtensionResultT = TypeVar("ExtensionResultT", bound=Result)

_MAX_PAGES = 50
_MAX_SHOWN = 200
"""Characters of an invalid URI in a message."""
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
        self._client = SkillsClient(
            transport,
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
        tools: list[Any] = []
        if has.tools is not None:
            pages = read_pages(self._client.list_tools, _MAX_PAGES)
            tools = [tool async for page in pages for tool in page.tools]
        extension = (has.extensions or {}).get(EXTENSION)
        offers = Offers(
            tools,
            has.resources is not None,
            has.prompts is not None,
            extension is not None,
            to_mapping(extension).get("directoryRead") is True,
        )
        return await self._with_skills(offers) if offers.has_skills else offers

    async def _with_skills(self, offers: Offers) -> Offers:
        skills: dict[str, ServedSkill] = {}
        problems: list[str] = []
        try:
            async for page in read_pages(self._client.list_skills, _MAX_PAGES):
                for entry in page.skills:
                    try:
                        skill = parse_entry(entry)
                        skills[skill.uri] = skill
                    except InvalidSkill as error:
                        uri = cut_text(printable(str(entry.get("uri"))), _MAX_SHOWN)
                        problems.append(f"{uri}: {error}")
        # The tools of the server can be used without its skills.
        except (MCPError, ValidationError) as error:
            problems.append(f"cannot list them: {error_text(error)}")
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


def _client_info() -> Implementation:
    try:
        own = version("amplifier")
    except PackageNotFoundError:
        own = "0"
    return Implementation(name="amplifier", version=own)
