"""Run tests in this process, each in its own session and working directory."""

from __future__ import annotations

import contextlib
import logging
import os
import re
import shlex
import time
from collections import Counter
from collections.abc import Callable, Generator, Mapping
from pathlib import Path
from typing import NamedTuple, cast

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.outcome import Ending, Outcome, outcome_of
from amplifier_app.base.stdio import Output
from amplifier_app.commands.run.choose import Chosen, choose
from amplifier_app.commands.run.one_shot import OneShot, checks_of_run, requirements
from amplifier_app.commands.run.request import Request
from amplifier_app.plan import ResolvedPlan
from amplifier_app.plan.traffic import Script, Traffic
from amplifier_app.plan.tree.nodes import NOWHERE, ListNode, text_of
from amplifier_app.render.result import RunReport
from amplifier_app.runtime.approvals.requests import Approvals, Policy
from amplifier_app.runtime.mounting.progress import Opening
from amplifier_app.runtime.observers.observer import Level, Renderer
from amplifier_app.runtime.session import OpenSession, open_session
from amplifier_app.runtime.turns.turn import NO_TURN, TurnResult
from amplifier_app.sources.plan_resolver import resolver_for
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_kit.plan_tests.cases import Case, items_of
from amplifier_kit.plan_tests.doubles import Doubles, Sent, recorded_lines
from amplifier_kit.plan_tests.network import Attempts, no_network
from amplifier_kit.plan_tests.working_dir import FileState, states, temporary_folder, working_dir
from amplifier_support.atomic_write import write_atomically
from amplifier_support.did_you_mean import did_you_mean
from amplifier_support.private_files import open_regular

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
        before: The files of the working directory before the run, by path.
        after: The same after it.
        problems: Problems besides the outcome, such as a tool that tried to use the network.
        notes: Warnings of the session and its modules.
        seconds: How long it took.
        is_recorded: Whether its recording was made.
    """

    plan: ResolvedPlan | None
    outcome: Outcome
    turn: TurnResult
    sent: tuple[Sent, ...]
    before: Mapping[str, FileState]
    after: Mapping[str, FileState]
    problems: tuple[str, ...]
    notes: tuple[str, ...]
    seconds: float
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
            return Ran(None, loaded, NO_TURN, (), {}, {}, (), (), 0.0)
        recording = case.path_of("recording")
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
        key = case.path_of("plan"), case.text("profile")
        if key not in self._plans:
            try:
                self._plans[key] = await _load(self._request._replace(plan=key[0], profile=key[1]))
            # The modules of a plan may raise anything.
            except Exception as error:
                self._plans[key] = outcome_of(error)
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
            stubs = {name: node for name, node in stubs.items() if text_of(node) is None}
        self._doubles = Doubles(stubs, recorded)
        self._working: Callable[[], str] = lambda: ""

    async def run(self) -> Ran:
        started = time.monotonic()
        with working_dir(self._case) as folder:
            before = states(folder)
            with self._block_network() as attempts, _logs(self._notes.texts):
                try:
                    outcome = await self._send()
                # An exception of a module is the outcome of the test.
                except (Exception, SystemExit) as error:
                    outcome = outcome_of(error)
            after = states(folder)
        turn = self._report.turn or NO_TURN
        return Ran(
            self._loaded.chosen.plan,
            outcome,
            turn,
            tuple(self._doubles.sent),
            before,
            after,
            tuple(self._problems(attempts, outcome)),
            tuple(self._notes.texts),
            time.monotonic() - started,
        )

    def _block_network(self) -> contextlib.AbstractContextManager[Attempts]:
        if self._traffic.record is not None:
            return contextlib.nullcontext(Attempts())
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

    def _problems(self, attempts: Attempts, outcome: Outcome) -> Generator[str]:
        yield from dict.fromkeys(self._doubles.problems)
        for attempt in dict.fromkeys(attempts.seen):
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
            lines = recorded_lines(Path(self._traffic.replay))
            planned, used = sum(line.get("type") == "request" for line in lines), len(sent)
        elif self._traffic.script is not None:
            planned, used = self._case.replies, sum(not one.by_agent for one in sent)
            yield from self._unused_replies_of_agents()
        else:
            return
        if used < planned:
            yield f"the model was called {used} of {planned} times; replies are left over"

    def _unused_replies_of_agents(self) -> Generator[str]:
        requests = Counter(one.session_id for one in self._doubles.sent)
        turn = self._report.turn or NO_TURN
        for agent, planned in self._case.agent_replies.items():
            # Each delegation starts from the first reply.
            used = [requests[one.session_id] for one in turn.sub_sessions if one.agent == agent]
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
    known = list(items_of(plan.tree, "agents"))
    for name in case.mapping("agents"):
        if name not in known:
            hint = did_you_mean(name, known) or f"its agents: {', '.join(known) or 'none'}"
            raise ConfigError(f"agents: the plan has no agent {name!r}; {hint}")


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
