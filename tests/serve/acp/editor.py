"""A client of the Agent Client Protocol, as an editor is one. Every message it gets is checked with the models
of the protocol's SDK."""

import contextlib
import json
import queue
import subprocess
import threading
from collections.abc import Callable, Generator, Mapping
from concurrent.futures import Future
from pathlib import Path
from typing import Any

from tests.support.cli import start_amplifier

RESPONSES = {
    "initialize": "InitializeResponse",
    "authenticate": "AuthenticateResponse",
    "session/new": "NewSessionResponse",
    "session/load": "LoadSessionResponse",
    "session/resume": "ResumeSessionResponse",
    "session/list": "ListSessionsResponse",
    "session/close": "CloseSessionResponse",
    "session/delete": "DeleteSessionResponse",
    "session/prompt": "PromptResponse",
    "session/set_mode": "SetSessionModeResponse",
    "session/set_config_option": "SetSessionConfigOptionResponse",
}
"""Methods and the models of their results."""
SECONDS = 60.0


def _check(model: str, value: Any) -> None:
    # Only workers that start an agent pay for this import.
    from acp import schema

    getattr(schema, model).model_validate(value)


class Refused(Exception):
    """An error response."""

    def __init__(self, error: Mapping[str, Any]) -> None:
        super().__init__(error["message"])
        self.code: int = error["code"]
        self.data: Any = error.get("data")


class Editor:
    """The editor and the agent that it has started.

    Attributes:
        process: The agent.
        updates: The updates of all sessions so far, each with its session.
        questions: The requests for permission so far.
        answer: Answers them: the result for the parameters; None to answer later, or never.
        files: The texts of the files that are open in it; it never answers for one with None.
        asked: The files that it was asked for.
    """

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        self.process = process
        self.updates: list[tuple[str, dict[str, Any]]] = []
        self.questions: list[dict[str, Any]] = []
        self.answer: Callable[[dict[str, Any]], dict[str, Any] | None] = lambda params: choose(
            params, "reject_once"
        )
        self.files: dict[str, str | None] = {}
        self.asked: list[str] = []
        self.faults: list[str] = []
        self.unrelated: queue.Queue[dict[str, Any]] = queue.Queue()
        self._waiting: dict[int, tuple[str, Future[Any]]] = {}
        self.last_id = 0
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def initialize(self, **capabilities: Any) -> dict[str, Any]:
        return self.call("initialize", protocolVersion=1, clientCapabilities=capabilities)

    def open(self, folder: Path, capabilities: Mapping[str, Any] = {}, **more: Any) -> str:
        """Initialize, and begin a session in a folder; return its id."""
        self.initialize(**capabilities)
        params = {"cwd": str(folder), "mcpServers": [], **more}
        return self.call("session/new", **params)["sessionId"]

    def prompt(self, session: str, text: str) -> dict[str, Any]:
        return self.begin_prompt(session, text).result(SECONDS)

    def begin_prompt(self, session: str, text: str) -> Future[Any]:
        return self.begin(
            "session/prompt", sessionId=session, prompt=[{"type": "text", "text": text}]
        )

    def set_option(self, session: str, option: Any, value: Any) -> dict[str, str]:
        """Change a setting of a session; return the values of all."""
        params = {"sessionId": session, "configId": option, "value": value}
        options = self.call("session/set_config_option", **params)["configOptions"]
        return {option["id"]: option["currentValue"] for option in options}

    def call(self, method: str, **params: Any) -> Any:
        """Call the agent.

        Raises:
            Refused: It answered with an error.
        """
        return self.begin(method, **params).result(SECONDS)

    def begin(self, method: str, **params: Any) -> Future[Any]:
        self.last_id += 1
        future: Future[Any] = Future()
        self._waiting[self.last_id] = (method, future)
        self.send({"id": self.last_id, "method": method, "params": params})
        return future

    def notify(self, method: str, **params: Any) -> None:
        self.send({"method": method, "params": params})

    def send(self, message: Mapping[str, Any]) -> None:
        self.send_bytes(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")

    def send_bytes(self, data: bytes) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(data)
        self.process.stdin.flush()

    def wait_for(self, kind: str, count: int = 1) -> list[dict[str, Any]]:
        """Wait until there are so many updates of a kind, and return them."""

        def matching() -> list[dict[str, Any]]:
            return [update for _, update in self.updates if update["sessionUpdate"] == kind]

        with self._changed:
            assert self._changed.wait_for(lambda: len(matching()) >= count, SECONDS), self.updates
            return matching()

    def text(self, session: str | None = None) -> str:
        """What the agent has said."""
        return "".join(
            update["content"]["text"]
            for id, update in self.updates
            if update["sessionUpdate"] == "agent_message_chunk" and session in (None, id)
        )

    def close(self) -> int:
        """Close the connection and return the exit code of the agent."""
        assert self.process.stdin is not None
        with contextlib.suppress(BrokenPipeError):
            self.process.stdin.close()
        code = self.process.wait(SECONDS)
        self._reader.join(SECONDS)
        assert not self.faults
        return code

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            try:
                self._receive(json.loads(line))
            except ValueError as error:  # also those of pydantic
                self.faults.append(f"{line[:300]!r}: {error}")
        for _, future in self._waiting.values():
            if not future.done():
                future.set_exception(ConnectionError("the agent has ended"))

    def _receive(self, message: dict[str, Any]) -> None:
        assert message.pop("jsonrpc") == "2.0"
        method = message.get("method")
        if method == "session/update":
            params = message["params"]
            _check("SessionNotification", params)
            with self._changed:
                self.updates.append((params["sessionId"], params["update"]))
                self._changed.notify_all()
        elif method == "session/request_permission":
            _check("RequestPermissionRequest", message["params"])
            self.questions.append(message["params"])
            result = self.answer(message["params"])
            if result is not None:
                self.send({"id": message["id"], "result": result})
        elif method == "fs/read_text_file":
            _check("ReadTextFileRequest", message["params"])
            self.asked.append(path := message["params"]["path"])
            missing = {"error": {"code": -32002, "message": "not open"}}
            found = {"result": {"content": self.files.get(path)}}
            if self.files.get(path, "") is not None:
                self.send({"id": message["id"], **(found if path in self.files else missing)})
        elif method == "fs/write_text_file":
            _check("WriteTextFileRequest", message["params"])
            self.files[message["params"]["path"]] = message["params"]["content"]
            self.send({"id": message["id"], "result": {}})
        elif method is None and message.get("id") in self._waiting:
            asked, future = self._waiting.pop(message["id"])
            if "error" in message:
                future.set_exception(Refused(message["error"]))
            else:
                if asked in RESPONSES:
                    _check(RESPONSES[asked], message["result"])
                future.set_result(message["result"])
        else:
            self.unrelated.put(message)


def choose(params: Mapping[str, Any], kind: str) -> dict[str, Any]:
    """The answer to a request for permission that takes the first option of a kind."""
    option = next(option for option in params["options"] if option["kind"] == kind)
    return {"outcome": {"outcome": "selected", "optionId": option["optionId"]}}


@contextlib.contextmanager
def running(*arguments: str | Path, **options: Any) -> Generator[Editor]:
    """An editor with `amplifier serve acp ARGUMENTS`."""
    process = start_amplifier(
        "serve", "acp", *arguments, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL, **options
    )
    try:
        editor = Editor(process)
        yield editor
        assert editor.close() == 0
    finally:
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                with contextlib.suppress(BrokenPipeError):
                    stream.close()
