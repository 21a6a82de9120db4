"""The server: takes requests, checks them, and plays the script."""

import asyncio
import contextlib
import inspect
import json
import threading
import time
from collections.abc import Awaitable, Callable, Generator, Sequence
from typing import Any, Protocol, Self
from urllib.parse import unquote

from tests.support.llm.anthropic import Anthropic
from tests.support.llm.batches import Batches
from tests.support.llm.http import (
    LAST_CHUNK,
    BadRequest,
    ClientLeft,
    Request,
    Responder,
    chunk,
    encode,
    read_request,
)
from tests.support.llm.openai import OpenAI
from tests.support.llm.responses import Responses
from tests.support.llm.rules import Rejected
from tests.support.llm.script import (
    Answer,
    Cut,
    ErrorEvent,
    Fault,
    Garbage,
    Item,
    Malformed,
    Raw,
    Reply,
    Reset,
    ResetAfter,
    Stall,
    Status,
)

_SSE = {"content-type": "text/event-stream; charset=utf-8", "cache-control": "no-cache"}


class Dialect(Protocol):
    """What a vendor's API looks like on the wire."""

    @property
    def paths(self) -> tuple[str, ...]: ...
    def authenticate(self, request: Request, key: str | None) -> None: ...
    def check(self, request: Request) -> None: ...
    def error(
        self, status: int, message: str, kind: str | None = None, param: str | None = None
    ) -> Any: ...
    def headers(self) -> dict[str, str]: ...
    def body(self, reply: Reply, request: Request) -> bytes: ...
    def events(self, reply: Reply, request: Request) -> list[bytes]: ...
    def error_event(self, fault: ErrorEvent) -> bytes: ...
    def remember_edited(self, events: list[bytes]) -> None: ...
    def model(self, name: str) -> dict[str, Any]: ...
    def models(self, names: list[str]) -> Any: ...


class ScriptedLLM:
    """Plays a script to any client, over real HTTP on 127.0.0.1.

        async with ScriptedLLM(["hello"]) as server: ...           # inside a running loop
        with ScriptedLLM.running(["hello"]) as server: ...         # from synchronous code

    Args:
        replies: One item per completion request; see `tests.support.llm.script`.
        strict: Answer 400 to what the vendor's API would not take.
        repeat_last: Say the last item again once the script is used up; otherwise a further
            request is answered 400, and counted in `rejections`.
        api_key: The only key accepted; None accepts any, but not none.
        require_key: False also accepts requests without a key, like most local servers.
        models: Names that exist; None lets every name exist and lists one.
        listing: What to answer on the paths of model lists and token counts, instead of the list
            or the count.
        on_request: Called with each request once it is recorded.

    Attributes:
        requests: Everything that arrived, in order; faulty and refused requests included.
        title: The answer to requests of chats for a title, which the script has no items for.
        titles: These requests.
        batches: The batches of both vendors; see `tests.support.llm.batches`.
    """

    def __init__(
        self,
        replies: Sequence[Item] = (),
        *,
        strict: bool = True,
        repeat_last: bool = False,
        api_key: str | None = None,
        require_key: bool = True,
        models: Sequence[str] | None = None,
        listing: Status | Reset | Raw | None = None,
        on_request: Callable[[Request], None] | None = None,
    ) -> None:
        self.replies: list[Item] = list(replies)
        self.strict = strict
        self.repeat_last = repeat_last
        self.api_key = api_key
        self.require_key = require_key
        self.models = list(models) if models is not None else None
        self.listing = listing
        self.requests: list[Request] = []
        self.title: Answer = ""
        self.titles: list[Request] = []
        self.batches = Batches(self._answer_alone)
        self._on_request = on_request
        self._next = 0
        self._anthropic = Anthropic()
        self._openai = OpenAI()
        self._responses = Responses()
        self._server: asyncio.Server | None = None
        self._tasks: set[asyncio.Task[None]] = set()
        self._changed = threading.Condition()
        self._address = ("127.0.0.1", 0)

    # -- addresses and what arrived --------------------------------------------------------

    @property
    def base_url(self) -> str:
        """Root without a path, what the Anthropic clients take as base URL."""
        return f"http://{self._address[0]}:{self._address[1]}"

    @property
    def env(self) -> dict[str, str | None]:
        """Variables with which the program asks it instead of Anthropic."""
        return {"ANTHROPIC_BASE_URL": self.base_url, "ANTHROPIC_API_KEY": "test-key"}

    @property
    def openai_base_url(self) -> str:
        """Root with `/v1`, what the OpenAI clients take as base URL."""
        return f"{self.base_url}/v1"

    @property
    def completions(self) -> list[Request]:
        """The requests for completions among `requests`."""
        paths = (*self._anthropic.paths, *self._openai.paths, *self._responses.paths)
        return [r for r in self.requests if r.method == "POST" and r.path in paths]

    @property
    def rejections(self) -> list[str]:
        """The messages of every 4xx the server's own rules gave."""
        return [r.rejection for r in self.requests if r.rejection is not None]

    @property
    def remaining(self) -> int:
        """Items of the script that have not been requested yet."""
        return len(self.replies) - self._next

    def rewind(self) -> None:
        """Start again with the first item of the script."""
        self._next = 0

    def wait_for(self, done: Callable[[Self], bool], timeout: float = 30.0) -> None:
        """Blocks until `done(server)` holds, looked at whenever a request comes or is answered.

        Raises:
            TimeoutError: It did not hold within `timeout` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(lambda: done(self), timeout):
                raise TimeoutError(f"after {timeout} s only {len(self.requests)} requests")

    def wait_for_requests(self, count: int, timeout: float = 30.0) -> None:
        """Blocks until `count` completion requests have arrived. Raises TimeoutError."""
        self.wait_for(lambda server: len(server.completions) >= count, timeout)

    async def arrived(self, count: int, timeout: float = 30.0) -> None:
        """`wait_for_requests` for a coroutine on any loop."""
        await asyncio.to_thread(self.wait_for_requests, count, timeout)

    # -- life ------------------------------------------------------------------------------

    async def start(self, host: str = "127.0.0.1", port: int = 0) -> None:
        """Listens. Raises OSError when the port is taken."""
        self._server = await asyncio.start_server(self._connected, host, port, limit=1 << 20)
        self._address = self._server.sockets[0].getsockname()[:2]

    async def stop(self) -> None:
        """Stops listening and drops what is open."""
        assert self._server is not None
        self._server.close()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await self._server.wait_closed()

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    @classmethod
    @contextlib.contextmanager
    def running(cls, replies: Sequence[Item] = (), **options: Any) -> Generator[Self]:
        """The server on a loop in a thread of its own, for synchronous callers."""
        server = cls(replies, **options)
        loop = asyncio.new_event_loop()
        thread = threading.Thread(target=loop.run_forever, name="scripted-llm", daemon=True)
        thread.start()
        try:
            asyncio.run_coroutine_threadsafe(server.start(), loop).result(10)
            try:
                yield server
            finally:
                asyncio.run_coroutine_threadsafe(server.stop(), loop).result(10)
        finally:
            loop.call_soon_threadsafe(loop.stop)
            thread.join(10)
            loop.close()

    # -- one connection --------------------------------------------------------------------

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        responder = Responder(reader, writer)
        try:
            while responder.keep_alive:
                request = await read_request(reader)
                if request is None:
                    break
                request.client_port = writer.get_extra_info("peername")[1]
                await self._serve(request, responder)
        except BadRequest as error:
            with contextlib.suppress(ClientLeft):
                await responder.send(400, {"connection": "close"}, str(error).encode())
        except (ClientLeft, ConnectionError, asyncio.IncompleteReadError):
            pass  # The client may leave: tests check `Request.client_left`.
        except asyncio.CancelledError:
            writer.transport.abort()
        finally:
            writer.close()
            self._tasks.discard(task)

    async def _serve(self, request: Request, responder: Responder) -> None:
        kept = self.titles if b"Write the title of a conversation" in request.raw else self.requests
        self._note(lambda: kept.append(request))
        if self._on_request is not None:
            self._on_request(request)
        try:
            await self._route(request, responder)
        except ClientLeft:
            self._note(lambda: setattr(request, "client_left", True))
            raise
        else:
            self._note(lambda: setattr(request, "answered", True))
        if request.headers.get("connection", "").lower() == "close" and responder.keep_alive:
            responder.close()

    def _note(self, change: Callable[[], None]) -> None:
        with self._changed:
            change()
            self._changed.notify_all()

    async def _route(self, request: Request, responder: Responder) -> None:
        dialect = self._dialect_of(request)
        try:
            if self.require_key:
                dialect.authenticate(request, self.api_key)
            is_count = request.path == "/v1/messages/count_tokens"
            if Batches.has(request.path):
                await self._serve_batches(request, responder, dialect)
            elif self.listing is not None and (request.method == "GET" or is_count):
                await self._play(self.listing, request, responder, dialect)
            elif request.method == "GET" and request.path.startswith("/v1/models"):
                await responder.send_json(200, self._models(request, dialect), dialect.headers())
            elif request.method == "POST" and is_count:
                if self.strict:
                    self._anthropic.check(request, counting=True)
                await responder.send_json(200, self._anthropic.count(request))
            elif request.method == "POST" and request.path in dialect.paths:
                await self._complete(request, responder, dialect)
            else:
                message = f"Not found: {request.method} {request.path}"
                raise Rejected(message, status=404, error="not_found_error")
        except Rejected as rejected:
            request.rejection = rejected.message
            error = dialect.error(rejected.status, rejected.message, rejected.error, rejected.param)
            if rejected.code is not None:
                error["error"]["code"] = rejected.code
            await responder.send_json(rejected.status, error, dialect.headers())

    async def _serve_batches(
        self, request: Request, responder: Responder, dialect: Dialect
    ) -> None:
        if (fault := self.batches.fault(request)) is not None:
            await self._play(fault, request, responder, dialect)
            return
        kind, content = await self.batches.handle(request)
        if self.batches.loses(request):
            responder.reset()
        elif isinstance(content, bytes):
            await responder.send(200, {"content-type": kind, **dialect.headers()}, content)
        else:
            await responder.send_json(200, content, dialect.headers())

    async def _answer_alone(self, request: Request) -> tuple[int, dict[str, Any]]:
        """The status and body of the answer to a request of a batch."""
        dialect = self._dialect_of(request)
        try:
            if self.strict:
                dialect.check(request)
                self._check_model(request.body["model"])
            answer = await self._answer(request)
        except Rejected as rejected:
            error = dialect.error(rejected.status, rejected.message, rejected.error, rejected.param)
            return rejected.status, error
        if isinstance(answer, Status):
            return answer.status, dialect.error(answer.status, answer.message, answer.error_type)
        reply = Reply(answer) if isinstance(answer, str) else answer
        assert isinstance(reply, Reply), "a batch has no answers that break off"
        return 200, json.loads(dialect.body(reply, request))

    def _dialect_of(self, request: Request) -> Dialect:
        if request.path.startswith("/v1/messages"):
            return self._anthropic
        if request.path.startswith("/v1/responses"):
            return self._responses
        # Both vendors list models at one path; only Anthropic's clients send this header.
        return self._anthropic if "anthropic-version" in request.headers else self._openai

    def _models(self, request: Request, dialect: Dialect) -> Any:
        names = self.models if self.models is not None else ["scripted-model"]
        name = unquote(request.path.removeprefix("/v1/models").strip("/"))
        if not name:
            return dialect.models(names)
        self._check_model(name)
        return dialect.model(name)

    def _check_model(self, name: str) -> None:
        if self.models is not None and name not in self.models:
            message = f"model: {name}"
            raise Rejected(message, status=404, error="not_found_error", code="model_not_found")

    # -- one completion --------------------------------------------------------------------

    async def _complete(self, request: Request, responder: Responder, dialect: Dialect) -> None:
        if self.strict:
            dialect.check(request)
            self._check_model(request.body["model"])
        await self._play(await self._answer(request), request, responder, dialect)

    async def _play(
        self, answer: Answer, request: Request, responder: Responder, dialect: Dialect
    ) -> None:
        if isinstance(answer, Status):
            await responder.pause(answer.delay)
            await self._send_status(answer, responder, dialect)
        elif isinstance(answer, Reset):
            await responder.pause(answer.delay)
            responder.reset()
        elif isinstance(answer, Raw):
            await self._send_raw(answer, responder)
        else:
            reply = Reply(answer) if isinstance(answer, str) else answer
            await responder.pause(reply.delay)
            send = self._send_stream if request.body.get("stream") else self._send_whole
            await send(reply, request, responder, dialect)

    async def _answer(self, request: Request) -> Answer:
        if request in self.titles:
            return self.title
        if self._next < len(self.replies):
            item = self.replies[self._next]
            self._next += 1
        elif self.repeat_last and self.replies:
            item = self.replies[-1]
        else:
            raise Rejected(f"the script has no reply for completion {len(self.completions)}")
        if not callable(item):
            return item
        made: Answer | Awaitable[Answer] = item(request)
        return await made if inspect.isawaitable(made) else made

    async def _send_status(self, answer: Status, responder: Responder, dialect: Dialect) -> None:
        headers = {**dialect.headers(), **{k.lower(): v for k, v in answer.headers.items()}}
        if isinstance(answer.body, str | bytes):
            body = answer.body.encode() if isinstance(answer.body, str) else answer.body
            await responder.send(answer.status, {"content-type": "text/html", **headers}, body)
            return
        body = answer.body
        if body is None:
            body = dialect.error(answer.status, answer.message, answer.error_type)
        await responder.send_json(answer.status, body, headers)

    async def _send_raw(self, answer: Raw, responder: Responder) -> None:
        for part in answer.parts():
            await responder.write(part)
        responder.close()

    async def _send_whole(
        self, reply: Reply, request: Request, responder: Responder, dialect: Dialect
    ) -> None:
        body = dialect.body(reply, request)
        match reply.fault:
            case Malformed():
                body = body[: len(body) // 2]
            case Garbage():
                body = reply.fault.data
            case ErrorEvent():
                body = encode(dialect.error(200, reply.fault.message, reply.fault.type))
            case _:
                pass
        headers = {
            "content-type": "application/json",
            "content-length": str(len(body)),
            **dialect.headers(),
            **reply.headers,
        }
        head = responder.head(200, headers)
        if isinstance(reply.fault, Cut | ResetAfter | Stall):
            await responder.write(head + body[: len(body) // 2])
            if await self._strike(reply.fault, responder):
                return
            await responder.write(body[len(body) // 2 :])
        else:
            await responder.write(head + body)

    async def _send_stream(
        self, reply: Reply, request: Request, responder: Responder, dialect: Dialect
    ) -> None:
        events = _with_fault(dialect.events(reply, request), reply.fault, dialect)
        if reply.edit is not None:
            events = reply.edit(events)
            dialect.remember_edited(events)
        fault = reply.fault if isinstance(reply.fault, Cut | ResetAfter | Stall) else None
        at = min(fault.after, len(events)) if fault else len(events)
        headers = {**_SSE, "transfer-encoding": "chunked", **dialect.headers(), **reply.headers}
        await responder.write(responder.head(200, headers))
        await self._send_events(events[:at], reply, responder)
        if fault is not None:
            if await self._strike(fault, responder):
                return
            await self._send_events(events[at:], reply, responder)
        await responder.write(LAST_CHUNK)

    async def _send_events(
        self, events: Sequence[bytes], reply: Reply, responder: Responder
    ) -> None:
        if reply.event_delay:
            for event in events:
                await responder.pause(reply.event_delay)
                await responder.write(chunk(event))
            return
        if reply.split_bytes is not None:
            data = b"".join(events)
            size = reply.split_bytes
            events = [data[at : at + size] for at in range(0, len(data), size)]
        if events:
            await responder.write(b"".join(map(chunk, events)))

    async def _strike(self, fault: Cut | ResetAfter | Stall, responder: Responder) -> bool:
        """Lets the fault happen; True when nothing more can be sent."""
        match fault:
            case Stall(beat=b""):
                await responder.pause(fault.seconds)
                return False
            case Stall():
                end = None if fault.seconds is None else time.monotonic() + fault.seconds
                while end is None or time.monotonic() < end:
                    await responder.write(chunk(fault.beat))
                    await responder.pause(fault.beat_seconds)
                return False
            case ResetAfter():
                # What was written must be on the wire before the reset overtakes it.
                await asyncio.sleep(0.02)
                responder.reset()
            case Cut():
                if fault.clean:
                    await responder.write(LAST_CHUNK)
                responder.close()
        return True


def _with_fault(events: list[bytes], fault: Fault | None, dialect: Dialect) -> list[bytes]:
    """The events with those faults built in that are only bytes."""
    match fault:
        case ErrorEvent():
            return [*events[: fault.after], dialect.error_event(fault)]
        case Malformed():
            at = min(fault.at, len(events) - 1)
            start = events[at].index(b"data: ") + 6
            broken = events[at][: (start + len(events[at])) // 2].rstrip(b"\n") + b"\n\n"
            return [*events[:at], broken, *events[at + 1 :]]
        case Garbage():
            return [*events[: fault.at], fault.data, *events[fault.at :]]
        case _:
            return events
