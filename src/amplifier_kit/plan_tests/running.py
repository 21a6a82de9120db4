"""Run tests in this process, each in its own session and working directory."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import re
import shlex
import shutil
import socket
import stat
import sys
import tempfile
import time
from collections import Counter, deque
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any, NoReturn, cast

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.outcome import Ending, Outcome, to_outcome
from amplifier_app.base.paths import temporary_dir
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.choose import Chosen, choose
from amplifier_app.commands.run.one_shot import OneShot, checks_of_run, requirements
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.traffic import Script, Traffic, read_recording
from amplifier_app.plan.tree.nodes import NOWHERE, ListNode, Node, plain_data, read_text
from amplifier_app.render.result import RunReport
from amplifier_app.runtime.approvals import Approvals, Policy
from amplifier_app.runtime.mount import Opening
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.session import OpenSession, open_session
from amplifier_app.runtime.turns.turn import NO_TURN, TurnResult
from amplifier_app.sessions.tool_calls import calls_in, results_in
from amplifier_app.sources.resolver import AppModuleSourceResolver, resolver_for
from amplifier_core.models import ToolResult
from amplifier_kit.plan_tests.cases import Case, read_items
from amplifier_kit.plan_tests.grammar import RECORDED
from amplifier_support.delegate import Delegate
from amplifier_support.fields import read_field, to_mapping
from amplifier_support.files import (
    is_special,
    open_regular,
    system_errors_as,
    write_atomically,
)
from amplifier_support.journal import readable_records
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_order import find_model
from amplifier_support.session_capabilities import REQUEST_LOG, RequestLog
from amplifier_support.text import did_you_mean

_REQUESTS = ("complete", "stream_complete")


class Sent(NamedTuple):
    """A request that was sent to a model.

    Attributes:
        provider: The name of the provider.
        model: The model of the request, or else of the provider; None if neither names one.
        system: Its system prompt.
        prompt: The text of the user in it.
        tools: The names of the tools that it offers.
        session_id: The session that sent it.
        by_agent: Whether that is a sub-session.
    """

    provider: str
    model: str | None
    system: str
    prompt: str
    tools: tuple[str, ...]
    session_id: str
    by_agent: bool


class Doubles:
    """The doubles of one session and its sub-sessions (see `Adjustment`).

    Args:
        stubs: The results of tools, by name.
        recording: The recording that recorded results come from.

    Attributes:
        sent: The requests of all sessions, in order.
        problems: What went wrong in a double.
        logs: The logs of requests, by session.
    """

    def __init__(self, stubs: Mapping[str, Node], recording: Path | None) -> None:
        self.sent: list[Sent] = []
        self.problems: list[str] = []
        self.logs: dict[str, RequestLog] = {}
        self._stubs = {name: plain_data(node) for name, node in stubs.items()}
        self._first: Any = None
        self._recorded: RecordedResults | None = None
        if recording is not None and RECORDED in self._stubs.values():
            self._recorded = RecordedResults(recording)

    def check(self, coordinator: Any) -> None:
        """Check that the plan has the tools.

        Raises:
            ConfigError: A tool is missing.
        """
        _require("tools", "tool", self._stubs, list(coordinator.get("tools")))

    def apply(self, coordinator: Any) -> None:
        """Put the doubles in place of tools and providers."""
        self._first = self._first or coordinator
        log = REQUEST_LOG.of(coordinator)
        if log is not None:
            self.logs[coordinator.session_id] = log
        tools: dict[str, Any] = coordinator.get("tools")
        for name, stub in self._stubs.items():
            if name in tools and not isinstance(tools[name], _StubbedTool):
                tools[name] = _StubbedTool(tools[name], name, stub, self)
        providers: dict[str, Any] = coordinator.get("providers")
        for name, provider in list(providers.items()):
            if not isinstance(provider, _WatchedProvider):
                by_agent = coordinator is not self._first
                sender = coordinator.session_id, by_agent
                providers[name] = _WatchedProvider(provider, name, self.sent, sender)

    @property
    def cache_breaks(self) -> tuple[str, ...] | None:
        """The requests that could not use the cache; None if an orchestrator reports none."""
        logs = [
            self.logs.get(session_id)
            for session_id in {request.session_id for request in self.sent}
        ]
        if not all(log is not None and log.count for log in logs):
            return None
        return tuple(text for log in self.logs.values() for text in log.breaks)

    def recorded_result(self, tool: str, arguments: Any) -> ToolResult:
        """The recorded result of a call."""
        output = None if self._recorded is None else self._recorded.take(tool, arguments)
        if output is None:
            what = f"{tool} was called with an input that the recording does not have"
            self.problems.append(f"{what}: {json.dumps(arguments, default=str)[:500]}")
            return ToolResult(success=False, error={"message": what})
        return ToolResult(success=True, output=output)


class _StubbedTool(Delegate):
    _called_as: str
    _doubles: Doubles
    _stub: Any
    _left: deque[Any] | None

    def __init__(self, inner: Any, name: str, stub: Any, doubles: Doubles) -> None:
        left = deque(cast("list[Any]", stub)) if isinstance(stub, list) else None
        super().__init__(inner, _called_as=name, _doubles=doubles, _stub=stub, _left=left)

    async def execute(self, input: dict[str, Any]) -> ToolResult:
        """The result of the stub."""
        if self._stub == RECORDED:
            return self._doubles.recorded_result(self._called_as, input)
        result = self._stub
        if self._left is not None:
            if not self._left:
                what = f"{self._called_as} was called more often than it has results"
                self._doubles.problems.append(what)
                return ToolResult(success=False, error={"message": what})
            result = self._left.popleft()
        if "error" in result:
            return ToolResult(success=False, error={"message": result["error"]})
        return ToolResult(success=True, output=result["output"])


class _WatchedProvider(Delegate):
    _mounted_as: str
    _sent: list[Sent]
    _sender: tuple[str, bool]

    def __init__(self, inner: Any, name: str, sent: list[Sent], sender: tuple[str, bool]) -> None:
        super().__init__(inner, _mounted_as=name, _sent=sent, _sender=sender)

    def __getattr__(self, name: str) -> Any:
        member = super().__getattr__(name)
        if name not in _REQUESTS:
            return member

        # A method that the provider lacks is missing here, too: loops choose by what exists.
        def request(asked: Any, **options: Any) -> Any:
            self._sent.append(self._described(asked, options))
            return member(asked, **options)

        return request

    def _described(self, request: Any, options: Mapping[str, Any]) -> Sent:
        model = options.get("model") or read_field(request, "model") or find_model(self._inner)
        tools: Sequence[Any] = read_field(request, "tools") or ()
        return Sent(
            self._mounted_as,
            model,
            _texts(request, "system", "developer"),
            _texts(request, "user"),
            tuple(str(read_field(tool, "name")) for tool in tools),
            *self._sender,
        )


def _texts(request: Any, *roles: str) -> str:
    messages: Sequence[Any] = read_field(request, "messages") or ()
    texts = [
        _text(read_field(message, "content"))
        for message in messages
        if read_field(message, "role") in roles
    ]
    return "\n\n".join(texts)


def _text(content: Any) -> str:
    if isinstance(content, str):
        return content
    blocks: Sequence[Any] = content if isinstance(content, (list, tuple)) else ()
    return "\n".join(str(text) for block in blocks if (text := read_field(block, "text")))


class RecordedResults:
    """The results of tools in a recording; calls with the same input get their results in order.

    Args:
        file: The recording.

    Raises:
        ConfigError: It cannot be read.
    """

    def __init__(self, file: Path) -> None:
        self._left: dict[str, deque[str]] = {}
        calls: dict[str, str] = {}
        for line in _recorded_lines(file):
            messages = to_mapping(line.get("request")).get("messages")
            for message in map(to_mapping, messages if isinstance(messages, list) else ()):
                calls |= {str(call.id): _key(call.name, call.input) for call in calls_in(message)}
                for call_id, content in results_in(message):
                    # Later requests are stored without the messages of earlier ones.
                    if (key := calls.pop(str(call_id), None)) is not None:
                        self._left.setdefault(key, deque()).append(_text(content))

    def take(self, tool: str, arguments: Any) -> str | None:
        """The next result of a call; None if there is none left."""
        left = self._left.get(_key(tool, arguments))
        return left.popleft() if left else None


def _recorded_lines(file: Path) -> list[dict[str, Any]]:
    """The lines of a recording; invalid lines are left out.

    Raises:
        ConfigError: It cannot be read.
    """
    what, hint = f"cannot read the recording {file}", "Check that you may read it."
    with system_errors_as(ConfigError, what, hint=hint):
        return readable_records(read_recording(file))


def _key(tool: Any, arguments: Any) -> str:
    return json.dumps([tool, arguments], sort_keys=True, default=str)


_INTERNET = (socket.AF_INET, socket.AF_INET6)
_LOOKUPS = ("socket.getaddrinfo", "socket.gethostbyname", "socket.gethostbyaddr")


class NetworkForbidden(OSError):
    """A test tried to use the network."""


class Attempt(NamedTuple):
    """A blocked attempt to use the network.

    Attributes:
        what: The name that was to be looked up, or `a socket`.
        who: The tool that was running; empty if none was.
    """

    what: str
    who: str


_blocking: list[Callable[[str], NoReturn]] = []
"""The function of each open block that refuses an attempt."""


@cache
def _install_hook() -> None:
    """Install the audit hook, which cannot be removed again."""
    sys.addaudithook(_refuse_network)


def _refuse_network(event: str, arguments: tuple[Any, ...]) -> None:
    if not _blocking or not event.startswith("socket."):
        return
    if event in _LOOKUPS:
        _blocking[-1](str(arguments[0]))
    elif event == "socket.__new__" and arguments[1] in _INTERNET:
        _blocking[-1]("a socket")


@contextmanager
def no_network(who: Callable[[], str]) -> Generator[list[Attempt]]:
    """Refuse internet sockets and name lookups of this process, in all of its threads; yields the attempts.

    Args:
        who: Names the tool that is running.
    """
    attempts: list[Attempt] = []

    def refuse(what: str) -> NoReturn:
        attempts.append(Attempt(what, who()))
        raise NetworkForbidden("the network is closed in tests of plans")

    _install_hook()
    _blocking.append(refuse)
    try:
        yield attempts
    finally:
        _blocking.remove(refuse)


_MAX_FILES = 10_000
_MAX_BYTES = 200 * 1024 * 1024
"""Of a folder to copy."""

_COMPARED_BYTES = 8 * 1024 * 1024
"""Of a file that a command made, which may have any size."""


class FileState(NamedTuple):
    """A file at one moment.

    Attributes:
        content: Its content, of a large file only the beginning; of a link, its target.
        rest: Size and time of change of a large file; None if `content` is all of it.
    """

    content: bytes
    rest: tuple[int, int] | None = None


@contextlib.contextmanager
def working_dir(case: Case) -> Generator[Path]:
    """The working directory of a test, which is current meanwhile and removed afterwards.

    Raises:
        ConfigError: Its files cannot be prepared.
    """
    back = os.getcwd()
    with temporary_folder() as parent:
        # Paths that tools report are compared with this one.
        folder = Path(os.path.realpath(parent)) / "work"
        _copy(case.read_path("workdir"), folder)
        _write(case.mapping("files"), folder)
        os.chdir(folder)
        try:
            yield folder
        finally:
            os.chdir(back)


@contextlib.contextmanager
def temporary_folder() -> Generator[Path]:
    """A folder that is removed afterwards.

    Raises:
        ConfigError: It cannot be created.
    """
    place = temporary_dir()
    with system_errors_as(ConfigError, "cannot create a temporary folder"):
        temporary = tempfile.TemporaryDirectory(
            prefix="amplifier-test-", dir=place, ignore_cleanup_errors=True
        )
    with temporary as folder:
        yield Path(folder)


def _copy(source: Path | None, folder: Path) -> None:
    """A copy of a folder, or an empty one; links are copied as they are."""
    files = size = 0

    def left_out(place: str, names: list[str]) -> list[str]:
        nonlocal files, size
        special = [name for name in names if is_special(os.path.join(place, name))]
        for name in names:
            files += 1
            with contextlib.suppress(OSError):  # reported by the copy
                size += os.lstat(os.path.join(place, name)).st_size
        if files > _MAX_FILES or size > _MAX_BYTES:
            most = f"{_MAX_FILES:,} files or {_MAX_BYTES // 1024 // 1024} MiB"
            raise ConfigError(f"workdir: {source} has more than {most}")
        return special

    with system_errors_as(ConfigError, f"cannot copy the workdir {source}"):
        if source is None:
            folder.mkdir()
        else:
            shutil.copytree(source, folder, symlinks=True, ignore=left_out)


def _write(files: Mapping[str, Node], folder: Path) -> None:
    for name, node in files.items():
        file = folder / name
        with system_errors_as(ConfigError, f"files: cannot write {name!r}"):
            # A link in the copied folder may point outside it.
            if not file.parent.resolve().is_relative_to(folder):
                raise ConfigError(f"files: {name!r} leads out of the working directory")
            file.unlink(missing_ok=True)
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(read_text(node) or "", encoding="utf-8", newline="")


# -- what a run changes ------------------------------------------------------------------


def states(folder: Path) -> dict[str, FileState]:
    """The files and links in a folder, by relative path; those of git are left out."""
    files: dict[str, FileState] = {}
    for place, folders, names in os.walk(folder):
        folders[:] = [name for name in folders if name != ".git"]
        links = [name for name in folders if os.path.islink(os.path.join(place, name))]
        for name in (*names, *links):
            file = Path(place, name)
            # A command left running may remove files at any time.
            with contextlib.suppress(FileNotFoundError):
                files[str(file.relative_to(folder))] = _state(file)
    return files


def _state(file: Path) -> FileState:
    """
    Raises:
        FileNotFoundError: It is gone.
    """
    try:
        if file.is_symlink():
            return FileState(os.fsencode(os.readlink(file)))
        status = file.stat()
        # Reading a pipe would not end.
        if not stat.S_ISREG(status.st_mode):
            return FileState(b"")
        with file.open("rb") as opened:
            content = opened.read(_COMPARED_BYTES)
    except PermissionError:
        return FileState(b"")
    is_whole = status.st_size <= _COMPARED_BYTES
    return FileState(content, None if is_whole else (status.st_size, status.st_mtime_ns))


_TIMEOUT = 60.0
_START = rb'\s*{\s*"type"\s*:\s*"header"'
"""Of every recording."""


class Ran(NamedTuple):
    """A test that ran.

    Attributes:
        plan: Its plan, as it is written; None if it cannot be loaded.
        outcome: How the run ended.
        turn: What happened.
        sent: The requests to models, also of sub-agents.
        cache_breaks: The requests that could not use a provider's cache, also of sub-agents; None if
            this is unknown.
        before: The files of the working directory before the run, by path.
        after: The same after it.
        problems: Problems besides the outcome, such as a tool that tried to use the network.
        notes: Warnings of the session and its modules.
        is_recorded: Whether its recording was made.
    """

    plan: ResolvedPlan | None
    outcome: Outcome
    turn: TurnResult
    sent: tuple[Sent, ...]
    cache_breaks: tuple[str, ...] | None
    before: Mapping[str, FileState]
    after: Mapping[str, FileState]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    is_recorded: bool = False


class Runner:
    """Runs tests, and loads each of their plans once.

    Args:
        trust: Whether to trust the `.amplifier` folder of the project.
        no_project: Whether to ignore that folder.
        update: Whether to record recordings again, with the providers of the plans.

    Raises:
        UsageError: The options are mutually exclusive.
    """

    def __init__(
        self, *, trust: bool = False, no_project: bool = False, update: bool = False
    ) -> None:
        self._request = Request(trust=trust, no_project=no_project, no_save=True).validate()
        self._update = update
        self._plans: dict[tuple[Path | None, str | None], _LoadedPlan | Outcome] = {}
        self._recorded: set[Path] = set()

    async def run(self, case: Case) -> Ran:
        """Run a test.

        Raises:
            ConfigError: Its files cannot be prepared.
        """
        loaded = await self._plan(case)
        if isinstance(loaded, Outcome):
            return Ran(None, loaded, NO_TURN, (), (), {}, {}, (), ())
        recording = case.read_path("recording")
        if recording is None or not self._update or recording in self._recorded:
            traffic = Traffic(
                script=case.script,
                replay=None if recording is None else _existing(recording, case),
                match=case.text("match") or "structure",
            )
            return await _Run(case, loaded, traffic).run()
        return await self._record(case, loaded, recording)

    async def _record(self, case: Case, loaded: _LoadedPlan, recording: Path) -> Ran:
        _check_replaceable(recording)
        with temporary_folder() as folder:
            file = folder / recording.name
            ran = await _Run(case, loaded, Traffic(record=str(file))).run()
            if ran.outcome.ending is not Ending.OK or not file.exists():
                return ran
            _replace(recording, file)
        # Another test with the same recording replays it.
        self._recorded.add(recording)
        return ran._replace(is_recorded=True)

    async def _plan(self, case: Case) -> _LoadedPlan | Outcome:
        """The plan of a test, or why it cannot be loaded."""
        key = case.read_path("plan"), case.text("profile")
        if key not in self._plans:
            try:
                self._plans[key] = await _load(self._request._replace(plan=key[0], profile=key[1]))
            # The modules of a plan may raise anything.
            except Exception as error:
                self._plans[key] = to_outcome(error)
        return self._plans[key]


class _LoadedPlan(NamedTuple):
    chosen: Chosen
    request: Request
    sources: AppModuleSourceResolver


async def _load(request: Request) -> _LoadedPlan:
    request = request.validate()
    # Its providers are not used, so their keys are not needed.
    chosen = choose(request, Output(-1), lenient=True)
    sources = resolver_for(chosen.plan)
    # Modules are fetched now: the network is closed during a test.
    scripted = Traffic(script=Script(ListNode([], NOWHERE), {}))
    await sources.prefetch(_with(chosen.plan, scripted).mount_plan())
    return _LoadedPlan(chosen, request, sources)


def _with(plan: ResolvedPlan, traffic: Traffic) -> ResolvedPlan:
    """The plan with stand-ins for its providers, checked."""
    changed = plan.chosen._replace(traffic=traffic)
    return ResolvedPlan(plan.merged, changed, plan.environ).resolve()


class _Run:
    """One run of a test.

    Args:
        case: The test.
        loaded: Its plan.
        traffic: Where its model comes from.
    """

    def __init__(self, case: Case, loaded: _LoadedPlan, traffic: Traffic) -> None:
        self._case = case
        self._loaded = loaded
        self._traffic = traffic
        self._report = RunReport()
        self._notes = _Notes()
        recorded = None if traffic.replay is None else Path(traffic.replay)
        stubs = case.mapping("tools")
        if traffic.record is not None:
            # There are no recorded results yet.
            stubs = {name: node for name, node in stubs.items() if read_text(node) is None}
        self._doubles = Doubles(stubs, recorded)
        self._working: Callable[[], str] = lambda: ""

    async def run(self) -> Ran:
        with working_dir(self._case) as folder:
            before = states(folder)
            with self._block_network() as attempts, _logs(self._notes.texts):
                try:
                    outcome = await self._send()
                # An exception of a module is the outcome of the test.
                except (Exception, SystemExit) as error:
                    outcome = to_outcome(error)
            after = states(folder)
        turn = self._report.turn or NO_TURN
        return Ran(
            self._loaded.chosen.plan,
            outcome,
            turn,
            tuple(self._doubles.sent),
            self._doubles.cache_breaks,
            before,
            after,
            tuple(self._problems(attempts, outcome)),
            tuple(self._notes.texts),
        )

    def _block_network(self) -> contextlib.AbstractContextManager[list[Attempt]]:
        if self._traffic.record is not None:
            return contextlib.nullcontext([])
        return no_network(lambda: self._working())

    async def _send(self) -> Outcome:
        case, request = self._case, self._loaded.request
        plan = _with(self._loaded.chosen.plan, self._traffic)
        _check_agents(case, plan)
        approvals = Approvals(cast("Policy", case.text("approve") or "deny"))
        timeout = case.number("timeout", _TIMEOUT)
        opening = Opening(time.monotonic() + timeout)
        async with open_session(
            plan,
            save=False,
            approval_system=approvals,
            mode=case.text("mode"),
            renderer=self._notes,
            sources=self._loaded.sources,
            adjustment=self._doubles,
            opening=opening,
        ) as session:
            self._working = lambda: _running_tool(session)
            required = requirements(request, session, None, checks_of_run(request, plan))
            shot = OneShot(session, opening, approvals, required)
            try:
                outcome = await shot.send(case.text("prompt") or "", timeout, lambda: False)
            finally:
                shot.fill(self._report)
        assert outcome is not None
        return outcome

    def _problems(self, attempts: list[Attempt], outcome: Outcome) -> Generator[str]:
        yield from dict.fromkeys(self._doubles.problems)
        for attempt in dict.fromkeys(attempts):
            who = f"{attempt.who} reached" if attempt.who else "a module reached"
            answer = f"stub it: tools: {{{attempt.who}: {{output: …}}}}" if attempt.who else ""
            yield "; ".join(filter(None, [f"{who} for the network ({attempt.what})", answer]))
        # A run with denied calls also goes on to its end.
        if outcome.ending in (Ending.OK, Ending.DENIED):
            yield from self._unused_replies()

    def _unused_replies(self) -> Generator[str]:
        """Report replies that no request used."""
        sent = self._doubles.sent
        if self._traffic.replay is not None:
            lines = _recorded_lines(Path(self._traffic.replay))
            planned, used = sum(line.get("type") == "request" for line in lines), len(sent)
        elif self._traffic.script is not None:
            planned, used = self._case.replies, sum(not request.by_agent for request in sent)
            yield from self._unused_replies_of_agents()
        else:
            return
        if used < planned:
            yield f"the model was called {used} of {planned} times; replies are left over"

    def _unused_replies_of_agents(self) -> Generator[str]:
        requests = Counter(request.session_id for request in self._doubles.sent)
        turn = self._report.turn or NO_TURN
        for agent, planned in self._case.agent_replies.items():
            # Each delegation starts from the first reply.
            used = [
                requests[session.session_id]
                for session in turn.sub_sessions
                if session.agent == agent
            ]
            if used and max(used) < planned:
                what = f"the model of the agent {agent!r} was called {max(used)} of {planned} times"
                yield f"{what}; replies are left over"
            elif not used and agent in self._case.own_agents:
                yield f"the agent {agent!r} was not called; its script is left over"


class _Notes(Renderer):
    """Keeps the warnings of a session."""

    def __init__(self) -> None:
        super().__init__()
        self.texts: list[str] = []

    def notice(self, message: str, level: Level, source: str) -> None:
        if level != "info":
            self.texts.append(message)


class _LogLines(logging.Handler):
    def __init__(self, texts: list[str]) -> None:
        super().__init__(logging.WARNING)
        self._texts = texts

    def emit(self, record: logging.LogRecord) -> None:
        self._texts.append(record.getMessage())


@contextlib.contextmanager
def _logs(texts: list[str]) -> Generator[None]:
    """Add log messages of modules to `texts`; they are not printed."""
    root, handler = logging.getLogger(), _LogLines(texts)
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)


def _check_agents(case: Case, plan: ResolvedPlan) -> None:
    """
    Raises:
        ConfigError: The plan does not have the agents of a test.
    """
    known = list(read_items(plan.tree, "agents"))
    _require("agents", "agent", case.mapping("agents"), known)
    _require("expect.agents", "agent", case.expected_agents, known)


def _require(where: str, kind: str, names: Iterable[str], known: list[str]) -> None:
    for name in names:
        if name not in known:
            hint = did_you_mean(name, known) or f"its {kind}s: {', '.join(known) or 'none'}"
            raise ConfigError(f"{where}: the plan has no {kind} {name!r}; {hint}")


def _running_tool(session: OpenSession) -> str:
    running = session.recorder.running
    return running[-1].name if running else ""


# -- recordings --------------------------------------------------------------------------


def _existing(recording: Path, case: Case) -> str:
    """
    Raises:
        ConfigError: The recording does not exist.
    """
    if not recording.is_file():
        hint = f"Record it with: amplifier test --update {shlex.quote(case.id)}"
        raise ConfigError(f"the recording {recording} does not exist", hint=hint)
    return str(recording)


def _check_replaceable(recording: Path) -> None:
    """Check that a recording can be made, before a model is paid for it.

    Raises:
        ConfigError: Its folder cannot be written to, or there is something else than a recording.
    """
    if not os.access(recording.parent, os.W_OK | os.X_OK):
        is_there = recording.parent.is_dir()
        problem = "cannot be written to" if is_there else "does not exist"
        raise ConfigError(f"the folder of the recording {recording} {problem}")
    try:
        with open(open_regular(recording, os.O_RDONLY), "rb") as file:
            start = file.read(100)
    except FileNotFoundError:
        return
    except OSError as error:
        raise ConfigError(f"cannot replace {recording}: {error.strerror}") from error
    if start and not re.match(_START, start):
        hint = "Record to another file, or remove this one."
        raise ConfigError(f"{recording} is not a recording", hint=hint)


def _replace(recording: Path, new: Path) -> None:
    """
    Raises:
        ConfigError: It cannot be written; the old recording is unchanged.
    """
    try:
        write_atomically(recording, new.read_bytes())
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot write the recording {recording}: {reason}") from error
