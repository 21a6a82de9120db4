"""One session of an editor, in a process of its own that works in the session's directory.

`server.py` starts it, sends `open`, and passes on what concerns the session. It ends when its input ends.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any

from amplifier_app.base.errors import AppError, ConfigError
from amplifier_app.base.json_rpc import (
    INTERNAL_ERROR,
    INVALID_PARAMS,
    INVALID_REQUEST,
    NO_SUCH_METHOD,
    Peer,
    RpcError,
    claim_stdin,
)
from amplifier_app.base.outcome import Ending, Outcome, to_outcome
from amplifier_app.base.stdio import Output, claim_stdout, open_standard_streams
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.run.choose import Chosen, choose, open_sources
from amplifier_app.commands.run.opening import open_chosen
from amplifier_app.commands.run.request import Request
from amplifier_app.runtime.approvals import Approvals, set_mode
from amplifier_app.runtime.continuation import reopening_options
from amplifier_app.runtime.observers.notices import show_logs
from amplifier_app.runtime.session import OpenSession
from amplifier_app.runtime.turn_outcome import outcome_of_turn
from amplifier_app.runtime.turns.turn import TurnResult
from amplifier_serve.acp.commands import Commands
from amplifier_serve.acp.inputs import ClientFiles, mount_servers, read_prompt, read_servers
from amplifier_serve.acp.options import Options
from amplifier_serve.acp.permissions import Permissions
from amplifier_serve.acp.server import NOT_FOUND
from amplifier_serve.acp.updates import Updates, count_tokens, replay, text_block
from amplifier_serve.agent import without_untrusted_project
from amplifier_support.sandbox.system_calls import forbid_inspection
from amplifier_support.session_capabilities import EDITOR_FILES

_AUTHENTICATION_REQUIRED = -32000
_CODES = {
    Ending.AUTHENTICATION: _AUTHENTICATION_REQUIRED,
    Ending.USAGE: INVALID_PARAMS,
}
_STUCK_SECONDS = 11.0
"""Seconds after which this process ends although a module blocks it: modules have 10 s to clean up."""
_STOP_REASONS = {"length": "max_tokens", "content_filter": "refusal"}


class _Turn:
    """A running prompt.

    Attributes:
        is_cancelled: Whether the editor has cancelled it.
        stop: Stops what it does now.
        task: Runs it; None before it has begun.
        ended: Set when it has ended.
    """

    def __init__(self) -> None:
        self.is_cancelled = False
        self.stop: Callable[[], object] = lambda: None
        self.task: asyncio.Task[dict[str, Any]] | None = None
        self.ended = asyncio.Event()


class Worker:
    """Answers what concerns the session.

    Args:
        source: The descriptor that messages are read from.
        output: Where they are written.
    """

    def __init__(self, source: int, output: Output) -> None:
        self.peer = Peer(source, output, self._handle)
        self._session: OpenSession | None = None
        self._request = Request()
        self._servers: dict[str, Any] = {}
        self._files: dict[str, Any] = {}
        self._mounting: asyncio.Task[None] | None = None
        self._approvals = Approvals("deny")
        self._turn: _Turn | None = None
        self._leave = asyncio.Event()
        self._keeping: asyncio.Task[None] | None = None
        self._reopening = asyncio.Lock()
        self._titling: asyncio.Task[None] | None = None
        self._changes: set[asyncio.Task[Any]] = set()
        self._updates = Updates(self._update)
        self._permissions = Permissions(self.peer, self._updates)
        self._options = Options(self._updates)
        self._commands = Commands(self._updates)

    async def serve(self) -> None:
        """Serve until the input ends, then stop what runs and close the session."""
        try:
            await self.peer.serve(_STUCK_SECONDS)
        finally:
            for change in self._changes:
                change.cancel()
            self._cancel()
            if self._turn is not None:
                await self._turn.ended.wait()
            await self._close()

    def _handle(self, method: str, params: dict[str, Any]) -> Awaitable[Any] | Any:
        match method:
            case "open":
                return self._open_first(params)
            case "opened":
                return asyncio.ensure_future(self._greet())
            case "session/cancel":
                return self._cancel()
            case "session/prompt":
                return self._prompt(params)
            case "session/set_mode":
                return self._set_mode(params.get("modeId"))
            case "session/set_config_option":
                return self._set_option(params.get("configId"), params.get("value"))
            case _:
                raise RpcError(NO_SUCH_METHOD, f"unknown method '{method}'")

    def _update(self, kind: str, fields: dict[str, Any]) -> None:
        if self._session is not None:
            update = {"sessionUpdate": kind, **fields}
            params = {"sessionId": self._session.id, "update": update}
            self.peer.notify("session/update", params)
            if kind == "current_mode_update":  # Some editors show the mode among the settings.
                options = self._options.listed(self._session)
                self._update("config_option_update", {"configOptions": options})

    @property
    def _opened(self) -> OpenSession:
        if self._session is None:
            raise RpcError(NOT_FOUND, "the session is not open")
        return self._session

    # Opening

    async def _open_first(self, params: dict[str, Any]) -> dict[str, Any]:
        method, arguments = params["method"], params["params"]
        request = Request.from_data(params["request"])
        if method != "session/new":
            # One without a prompt ends, unsaved, when it is opened again, and keeps its id.
            request = request._replace(session=arguments["sessionId"])
        self._servers = read_servers(arguments.get("mcpServers"))
        self._files = params["files"]
        self._updates.has_terminals = params["terminals"]
        request, notice = without_untrusted_project(request)
        if notice:
            self._updates.hold(notice)
        try:
            session = await self._open(request)
            if method == "session/load":
                await replay(session, self._updates)
        except (AppError, ExceptionGroup) as error:
            raise _to_rpc_error(to_outcome(error)) from error
        return {"sessionId": session.id, **self._options.state(session)}

    async def _open(self, request: Request) -> OpenSession:
        """Open the session of a request; it stays open until `_close`.

        Raises:
            AppError: It cannot be opened.
        """
        chosen = choose(request, Output(-1))
        if chosen.plan.default_provider is None:
            hint = "Run 'amplifier init' in a terminal, or choose another profile."
            error = {"hint": hint, "outcome": Ending.CONFIGURATION.value}
            raise RpcError(_AUTHENTICATION_REQUIRED, f"no provider is set up. {hint}", error)
        self._request, self._leave = request, asyncio.Event()
        opened: asyncio.Future[OpenSession] = asyncio.get_running_loop().create_future()
        self._keeping = asyncio.create_task(self._keep(request, chosen, opened))
        try:
            await asyncio.wait({self._keeping, opened}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not opened.done():
                self._keeping.cancel()
        if not opened.done():
            await self._keeping
        self._session = opened.result()
        await self._options.list_models(self._session)
        return self._session

    async def _keep(
        self, request: Request, chosen: Chosen, opened: asyncio.Future[OpenSession]
    ) -> None:
        """Hold the session open, in one task from its beginning to its end."""
        self._approvals = approvals = Approvals(
            request.approve or "ask", self._permissions.ask, self._permissions.ask_about_tool
        )
        logs = show_logs(self._updates, verbose=False)
        sources = await open_sources(request, chosen)
        async with open_chosen(request, chosen, approvals, self._updates, sources) as session:
            approvals.session_id = session.id
            approvals.stop = self._cancel
            approvals.warn = lambda text: self._updates.notice(text, "warning", "approval")
            logs.show_held(session.mounting.not_mounted)
            self._updates.session = session
            if self._files.get("readTextFile"):
                files = ClientFiles(self.peer, session.id, bool(self._files.get("writeTextFile")))
                EDITOR_FILES.register(session.session.coordinator, files)
                self._updates.unsaved = files.unsaved
                self._commands.changed_in_editor = files.changed
            self._mounting = asyncio.create_task(
                mount_servers(session, self._servers, self._updates)
            )
            opened.set_result(session)
            await self._leave.wait()
            self._mounting.cancel()
            await asyncio.wait({self._mounting})

    async def _close(self) -> None:
        await self._end_titling()
        self._leave.set()
        if self._keeping is not None:
            await asyncio.wait({self._keeping})

    async def _reopen(self, **changes: Any) -> None:
        """Open the session again with other options.

        Raises:
            RpcError: It cannot; the session is as before.
        """
        session, same = self._opened, reopening_options(self._opened)
        if same is None:
            raise RpcError(INVALID_REQUEST, "a session that is not saved cannot be changed")
        # One without a prompt is not saved yet, and keeps its id.
        again = self._request._replace(session=session.id, **same)
        await self._close()
        self._session = None
        try:
            await self._open(again._replace(**changes))
        except Exception:
            await self._open(again)
            raise

    async def _greet(self) -> None:
        """Send what follows the answer to the editor: the commands."""
        await self._commands.announce(self._opened)

    # Prompts

    def _prompt(self, params: dict[str, Any]) -> Awaitable[Any]:
        # `session/cancel` may be the next message.
        turn, before = _Turn(), self._turn
        running = before and before.task
        # A request that was cancelled may have ended in this moment.
        is_ending = running is None or running.done() or running.cancelling()
        if before is not None and not before.is_cancelled and not is_ending:
            raise RpcError(INVALID_REQUEST, "a prompt is already running")
        self._turn = turn
        turn.task = asyncio.create_task(self._run(turn, before, params.get("prompt")))
        # Also if it is cancelled before it has begun.
        turn.task.add_done_callback(lambda _: self._ended(turn))
        return turn.task

    async def _run(self, turn: _Turn, before: _Turn | None, blocks: Any) -> dict[str, Any]:
        turn.stop = asyncio.current_task().cancel  # pyright: ignore[reportOptionalMemberAccess]
        try:
            if before is not None:
                await before.ended.wait()
            await self._end_titling()
            async with self._reopening:
                session = self._opened
            text, images = read_prompt(blocks)
            self._updates.prompt_begins()
            if await self._commands.run(text, session):
                text = self._commands.take_prompt()
                if text is None:
                    return {"stopReason": "end_turn"}
            await self._wait_for_servers()
            session.attach(images)
            if turn.is_cancelled:
                return {"stopReason": "cancelled"}
            turn.stop = lambda: session.stop(immediate=True)
            result = await session.run(text)
            if session.turn.response:
                self._titling = asyncio.create_task(self._request_title(session))
            usage = count_tokens(session)
            answer = {"stopReason": self._stop_reason(session, result)}
            return {**answer, "usage": usage} if usage else answer
        except asyncio.CancelledError:
            if turn.is_cancelled:
                return {"stopReason": "cancelled"}
            turn.is_cancelled = True
            raise
        # Modules may raise anything.
        except Exception as error:
            if turn.is_cancelled:
                return {"stopReason": "cancelled"}
            if isinstance(error, RpcError):
                raise
            raise _to_rpc_error(to_outcome(error)) from error
        finally:
            self._updates.prompt_ended()

    async def _request_title(self, session: OpenSession) -> None:
        """Let the model write the session's title, until the next prompt comes."""
        await session.request_title()
        self._updates.send_title()

    async def _end_titling(self) -> None:
        if self._titling is not None:
            self._titling.cancel()
            await asyncio.wait({self._titling})

    async def _wait_for_servers(self) -> None:
        """Wait for the MCP servers of the editor, so that the first request has their tools."""
        assert self._mounting is not None
        if not self._mounting.done() and self._servers:
            text = f"waiting for the MCP servers: {', '.join(self._servers)}\n\n"
            self._updates.send("agent_thought_chunk", {"content": text_block(text)})
        await asyncio.shield(self._mounting)

    def _ended(self, turn: _Turn) -> None:
        turn.ended.set()
        if self._turn is turn:
            self._turn = None

    def _stop_reason(self, session: OpenSession, result: TurnResult) -> str:
        if result.status == "cancelled":
            return "cancelled"
        if result.reason in _STOP_REASONS:
            return _STOP_REASONS[result.reason]
        outcome = outcome_of_turn(result, self._approvals.denial, session.id)
        if outcome.ending in (Ending.OK, Ending.DENIED):
            return "end_turn"
        if outcome.ending is Ending.BUDGET:
            self._updates.say(f"{outcome.message}. {outcome.hint or ''}".rstrip())
            return "max_turn_requests"
        raise _to_rpc_error(outcome)

    def _cancel(self) -> None:
        if self._turn is not None:
            self._turn.is_cancelled = True
            self._turn.stop()

    # Options

    async def _set_mode(self, mode: Any) -> dict[str, Any]:
        async with self._reopening:
            session = self._opened
            try:
                await set_mode(session.session.coordinator, str(mode))
            except ConfigError as error:
                raise _to_rpc_error(to_outcome(error)) from error
            if session.saved is not None and session.is_saved:
                # Turns save it. The session may be left before the next one.
                session.saved.update(mode=mode)
        return {}

    def _set_option(self, option: Any, value: Any) -> Awaitable[Any]:
        # A prompt may be the next message.
        if option != "mode" and self._turn is not None:
            raise RpcError(INVALID_REQUEST, "cannot change this while a prompt is running")
        change = asyncio.create_task(self._change(option, value))
        self._changes.add(change)
        change.add_done_callback(self._changes.discard)
        # A request that is cancelled must not leave the session closed.
        return asyncio.shield(change)

    async def _change(self, option: Any, value: Any) -> dict[str, Any]:
        if option == "mode":
            await self._set_mode(value)
        else:
            async with self._reopening:
                changes = self._options.change(self._opened, option, value)
                try:
                    await self._reopen(**changes)
                except RpcError:
                    raise
                # Modules may raise anything.
                except Exception as error:
                    raise _to_rpc_error(to_outcome(error)) from error
                await self._greet()
        return {"configOptions": self._options.listed(self._opened)}


def _to_rpc_error(outcome: Outcome) -> RpcError:
    ending = outcome.ending
    data = {"outcome": ending.value, "exit_code": outcome.exit_code, "hint": outcome.hint}
    message = f"{outcome.message}\n{outcome.hint}" if outcome.hint else outcome.message
    return RpcError(_CODES.get(ending, INTERNAL_ERROR), message, data)


def main() -> None:
    """Serve one session until the input ends."""
    open_standard_streams()
    forbid_inspection()
    with contextlib.suppress(KeyboardInterrupt), claim_stdout() as output:
        run_loop(Worker(claim_stdin(), output).serve())


if __name__ == "__main__":
    main()
