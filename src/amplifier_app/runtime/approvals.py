"""Approval of tool calls: the mode of the session, the plan's rules, and requests to the user.

A module provides the mode in the capability `approval.mode`; the app reads and sets it through this
file only. Requests fail closed: without an answer, a call is denied.
"""

from __future__ import annotations

import asyncio
import contextlib
import inspect
import os
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, Protocol

from amplifier_app.base.errors import ConfigError, ModuleError
from amplifier_app.base.json_text import value_text
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.sanitize import visible
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.runtime import describe
from amplifier_app.runtime.mount import mount_entries
from amplifier_app.sessions.summary import short_id
from amplifier_core.approval import ApprovalTimeoutError, ToolApproval, ToolApprovalAnswer
from amplifier_core.interfaces import ApprovalResponse
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.session_capabilities import (
    APPROVAL_POLICY,
    MODE,
    REGISTER_APPROVAL_PROVIDER,
    TEST_GUARDS,
    TestGuards,
    tool_check,
)
from amplifier_support.working_folder import working_folder

if TYPE_CHECKING:
    from amplifier_app.runtime.approval_program import ProgramAnswer
    from amplifier_app.sessions.waiting import Answer, Question, Waiting
    from amplifier_core.interfaces import ApprovalRequest

    AskProgram = Callable[[Mapping[str, Any], float | None], Awaitable[ProgramAnswer]]
    """Asks what answers in the user's place: a question of `approval_program`, and its timeout."""


ADD_MODULE = (
    "Add hooks-approval to the plan: amplifier module add hooks-approval. It must be the bundled one: with "
    "a source of its own, a published one has neither modes nor rules."
)

Policy = Literal["ask", "deny", "allow", "policy", "park"]

_PARKED = "not run: it waits for the user's approval"
_ONCE, _ALWAYS, _DENY = "Allow once", "Allow always", "Deny"
_MAX_SHOWN = 4000

Ask = Callable[[str, list[str], float | None], Awaitable[str | None]]
"""Asks the user to choose one of the options within a timeout in seconds; None means denied.

Raises:
    TimeoutError: No answer within the timeout.
"""

AskAboutTool = Callable[[ToolApproval, str, float | None], Awaitable[ToolApprovalAnswer | None]]
"""Asks the user about a tool call of an agent, or of the session if that is empty; like `Ask`."""


AskForText = Callable[[str, float | None], Awaitable[str | None]]
"""Asks the user for a line of text, like `Ask`."""


class Attendant(Protocol):
    """Someone who may come and go while a session runs.

    Both may be called while a question is not answered yet. They return None if no one has answered.
    """

    async def ask(self, prompt: str, options: list[str], timeout: float | None) -> str | None: ...

    async def ask_about_tool(
        self, request: ToolApproval, agent: str, timeout: float | None
    ) -> ToolApprovalAnswer | None: ...


class AgentApprovals:
    """The approvals of one agent: an `amplifier_core.approval.ApprovalSystem`, `ToolApprovalSystem` and `AnswerSystem`.

    All agents of a session share its `Approvals`, and with them "allow always"; questions name the agent.

    Args:
        approvals: The approvals of the session, which ask.
        agent: The name of the agent, after the names of the agents above it and slashes.
    """

    def __init__(self, approvals: Approvals, agent: str) -> None:
        self.for_agent: Callable[[str], AgentApprovals] = lambda below: AgentApprovals(
            approvals, f"{agent}/{below}"
        )
        self.request_approval = partial(approvals.request_approval, agent=agent)
        self.request_tool_approval = partial(approvals.request_tool_approval, agent=agent)
        self.request_answer = partial(approvals.request_answer, agent=agent)


class Approvals:
    """The approvals of a session and its agents; the session itself is the agent without a name.

    Args:
        policy: How to answer; ``ask`` without a terminal is ``deny``, ``policy`` is the default
            of each request, ``park`` keeps the question with the session.
        ask: How to ask; None without a terminal.
        ask_about_tool: How to ask about a tool call; by default like any other question.
        ask_for_text: How to ask for text; None if that is not possible.

    Attributes:
        policy: How to answer; may be changed at any time.
        program: Answers first, in the user's place; None if nothing does.
        attendant: Is asked before the policy applies; None if the policy is final.
        session_id: The session's id, for the program.
        is_saved: Whether the session is saved, so that questions can be kept.
        warn: Shows that the program failed.
        asking: The number of tool calls that the user is asked about, with those that wait.
        denied: The questions that were denied, in order.
        unanswered: The questions for an answer that got none, in order.
        stop: Stops the turn; called for Ctrl-C at a question.
        waiting: The session's questions that wait for an answer; None if it is not saved.
        parked: The questions of this run that wait, in order.
    """

    def __init__(
        self,
        policy: Policy,
        ask: Ask | None = None,
        ask_about_tool: AskAboutTool | None = None,
        ask_for_text: AskForText | None = None,
    ) -> None:
        self.policy: Policy = policy
        self._ask = ask
        self._ask_about_tool = ask_about_tool
        self._ask_for_text = ask_for_text
        self._always: dict[str, str] = {}
        self._one_at_a_time = asyncio.Lock()
        self.asking = 0
        self.denied: list[str] = []
        self.unanswered: list[str] = []
        self.stop: Callable[[], object] = lambda: None
        self.waiting: Waiting | None = None
        self.parked: list[Question] = []
        self.program: AskProgram | None = None
        self._program_denied = False
        self.attendant: Attendant | None = None
        self.session_id = ""
        self.is_saved = True
        self.warn: Callable[[str], object] = lambda text: None

    @property
    def is_interactive(self) -> bool:
        """True if requests are answered by the user."""
        return self.policy == "ask" and self._ask is not None

    @property
    def denial(self) -> Outcome | None:
        """The outcome of a run in which a request was denied or not answered; None if none was."""
        if not self.denied:
            if not self.unanswered or self.is_interactive:
                return None
            message = f"no one could answer: {self.unanswered[0]}"
            return Outcome(Ending.DENIED, message, "Run on a terminal to be asked.")
        # Anyone who says no needs no advice.
        park = "keep the question with --approve park, " if self.is_saved else ""
        hint = f"Allow it with --approve allow, {park}or run on a terminal to be asked."
        is_advised = not (self.is_interactive or self._program_denied)
        asked = self.denied[0]
        call = asked.removeprefix("Allow ")  # of a tool call
        message = f"approval was denied{':' if call == asked else ' for'} {call}"
        return Outcome(Ending.DENIED, message, hint if is_advised else None)

    @property
    def wait(self) -> Outcome | None:
        """The outcome of a run with a question that waits; None if there is none."""
        if not self.parked:
            return None
        session = short_id(self.session_id)
        asked = self.parked[0].text.removeprefix("Allow ")
        hint = (
            f"Answer with: amplifier session approve {session} --allow (or --deny), then run: "
            f"amplifier run --resume {session}"
        )
        return Outcome(Ending.WAITING, f"waiting for approval: {asked}", hint)

    def forget(self) -> None:
        """Ask again about what was always allowed in this session."""
        self._always.clear()

    def for_agent(self, agent: str) -> AgentApprovals:
        """Return the approvals of an agent that the session delegates to."""
        return AgentApprovals(self, agent)

    async def request_answer(
        self, prompt: str, options: list[str] | None, timeout: float | None, agent: str = ""
    ) -> str | None:
        """Return the user's answer; None if there is none. Only the user can answer, whatever the policy.

        Raises:
            ApprovalTimeoutError: No answer within `timeout` seconds.
        """
        answer = None
        question = _with_agent(agent, prompt)
        try:
            if self.attendant is not None and options is not None:
                answer = await self.attendant.ask(question, options, timeout)
            async with self._one_at_a_time:
                if answer is not None or self.policy != "ask":
                    pass
                elif options is not None and self._ask is not None:
                    answer = await self._ask(question, options, timeout)
                elif options is None and self._ask_for_text is not None:
                    answer = await self._ask_for_text(question, timeout)
        except TimeoutError:
            raise ApprovalTimeoutError(f"no answer within {timeout:g} s") from None
        finally:
            if answer is None:
                self.unanswered.append(" ".join(prompt.split()))
        return answer

    async def request_tool_approval(
        self, request: ToolApproval, timeout: float | None, agent: str = ""
    ) -> ToolApprovalAnswer:
        """Return one of the request's options.

        Raises:
            ApprovalTimeoutError: No answer within `timeout` seconds.
        """
        waiting, key = self.waiting, ""
        if waiting is not None:
            key = waiting.key_of_call(
                request.tool_name, request.tool_input, os.path.realpath(request.working_dir)
            )
        if (parked_answer := self._take(key, request.question)) is not None:
            return ToolApprovalAnswer(
                _option(request.options, parked_answer.decision), parked_answer.text or None
            )
        values = dict(request.tool_input)
        asked = {
            **{"kind": "tool", "tool": request.tool_name, "input": values},
            **{"question": request.question, "reason": request.reason, "agent": agent},
            "working_dir": request.working_dir,
        }
        decided = await self._ask_program(asked, timeout)
        if decided is not None:
            option = _option(request.options, decided.decision)
            return ToolApprovalAnswer(option, decided.reason, "program", input=decided.input)
        if self.attendant is not None:
            answer = await self.attendant.ask_about_tool(request, agent, timeout)
            if answer is not None:
                self._note_denial(request.question, answer.option)
                return answer
        if self.policy == "park" and waiting is not None:
            parked = waiting.ask(key, request.tool_name, values, request.question, agent)
            self.parked.append(parked)
            return ToolApprovalAnswer(_option(request.options, "deny"), _PARKED, "policy")
        ask = self._ask_about_tool
        if ask is None or self.policy != "ask":
            option = await self._answer_noting(
                request.question, request.options, timeout, "deny", agent
            )
            return ToolApprovalAnswer(option, by="user" if self.is_interactive else "policy")
        answer = None
        self.asking += 1
        try:
            async with self._one_at_a_time:
                answer = await ask(request, agent, timeout)
        except TimeoutError:
            raise ApprovalTimeoutError(f"no answer within {timeout:g} s") from None
        finally:
            self.asking -= 1
            self._note_denial(request.question, "" if answer is None else answer.option)
        return answer or ToolApprovalAnswer(_option(request.options, "deny"))

    def _take(self, key: str, question: str) -> Answer | None:
        """The answer that was given to a question since an earlier run; None if there is none."""
        answer = None if self.waiting is None else self.waiting.take(key)
        if answer is not None and answer.decision == "deny":
            self.denied.append(question)
        return answer

    def _note_denial(self, question: str, option: str) -> None:
        if not option.lower().startswith("allow"):
            self.denied.append(question)

    async def _ask_program(
        self, asked: Mapping[str, Any], timeout: float | None
    ) -> ProgramAnswer | None:
        """The decision of the program; None if the user has to be asked."""
        if self.program is None:
            return None
        about = {"working_dir": asked.get("working_dir") or working_folder()}
        answer = await self.program({**asked, **about, "session_id": self.session_id}, timeout)
        if answer.problem is not None:
            self.warn(f"the program that approves failed, so the call is denied: {answer.problem}")
        if answer.decision == "deny":
            self.denied.append(asked["question"])
            self._program_denied = True
        return None if answer.decision == "ask" else answer

    async def request_approval(
        self, prompt: str, options: list[str], timeout: float | None, default: str, agent: str = ""
    ) -> str:
        """Return one of `options`.

        Raises:
            ApprovalTimeoutError: No answer within `timeout` seconds.
        """
        waiting = self.waiting
        key = "" if waiting is None else waiting.key_of_question(prompt)
        if (parked_answer := self._take(key, prompt)) is not None:
            text = parked_answer.text
            return text if text in options else _option(options, parked_answer.decision)
        asked = {"kind": "question", "question": prompt, "options": options, "agent": agent}
        decided = await self._ask_program(asked, timeout)
        if decided is not None:
            return _option(options, decided.decision)
        if self.attendant is not None:
            chosen = await self.attendant.ask(_with_agent(agent, prompt), options, timeout)
            if chosen is not None:
                self._note_denial(prompt, chosen)
                return chosen
        if self.policy == "park" and waiting is not None:
            self.parked.append(waiting.ask(key, None, {"options": options}, prompt, agent))
            return _option(options, "deny")
        return await self._answer_noting(prompt, options, timeout, default, agent)

    async def _answer_noting(
        self, prompt: str, options: list[str], timeout: float | None, default: str, agent: str
    ) -> str:
        """The answer; a denial is noted."""
        try:
            answer = await self._answer(prompt, options, timeout, default, agent)
        except asyncio.CancelledError:
            # The requester may have a time limit of its own.
            self.denied.append(prompt)
            raise
        self._note_denial(prompt, answer)
        return answer

    async def _answer(
        self, prompt: str, options: list[str], timeout: float | None, default: str, agent: str
    ) -> str:
        if self.policy == "allow" or (self.policy == "policy" and default == "allow"):
            return _option(options, "allow")
        if self.policy != "ask" or self._ask is None:
            return _option(options, "deny")
        async with self._one_at_a_time:
            remembered = self._always.get(prompt)
            if remembered is not None:
                return remembered
            try:
                answer = await self._ask(_with_agent(agent, prompt), options, timeout)
            except TimeoutError:
                if default != "allow":
                    self.denied.append(prompt)
                raise ApprovalTimeoutError(f"no answer within {timeout:g} s") from None
        answer = answer or _option(options, "deny")
        if answer.lower() == "allow always":
            self._always[prompt] = answer
        return answer


def _with_agent(agent: str, question: str) -> str:
    return f"{agent}: {question}" if agent else question


def _option(options: list[str], word: str) -> str:
    """Return the option starting with `word`, or the bare word, which the kernel understands."""
    return next((option for option in options if option.lower().startswith(word)), word.title())


class ApprovalAnswers:
    """The `amplifier_core.interfaces.ApprovalProvider` of a session: asks like its hooks.

    Args:
        system: The session's approval system (`amplifier_core.approval.ApprovalSystem`).
    """

    def __init__(self, system: Any) -> None:
        self._system = system

    async def request_approval(self, request: ApprovalRequest) -> ApprovalResponse:
        """Answer a request.

        Raises:
            TimeoutError: No answer within the request's time limit.
        """
        question, whole = _question(request)
        # A request that is not shown in full can be allowed only once.
        options = [_ONCE, _ALWAYS, _DENY] if whole else [_ONCE, _DENY]
        try:
            answer = await self._system.request_approval(question, options, request.timeout, "deny")
        except ApprovalTimeoutError as error:
            raise TimeoutError(str(error)) from None
        approved = answer.lower().startswith("allow")
        was_asked = getattr(self._system, "is_interactive", False)
        denied = describe.DENIED_TO_MODEL if was_asked else "approval was denied"
        return ApprovalResponse(
            approved=approved, reason=None if approved else denied, remember=answer == _ALWAYS
        )


def check_policy(coordinator: Any) -> None:
    """Check that the rules of the plan are applied, if it has any.

    Raises:
        ConfigError: No module applies them.
    """
    if coordinator.config.get("approvals") and APPROVAL_POLICY.of(coordinator) is None:
        raise ConfigError("no module applies the plan's approvals", hint=ADD_MODULE)


async def give_approval_provider(coordinator: Any) -> None:
    """Pass the approval provider to the module that registered `approval.register_provider`, if any.

    Raises:
        ModuleError: The module raised an exception.
    """
    register, system = REGISTER_APPROVAL_PROVIDER.of(coordinator), coordinator.approval_system
    if register is None or system is None:
        return
    try:
        taken = register(ApprovalAnswers(system))
        if inspect.isawaitable(taken):
            await taken
    # A module may raise anything; without a provider there would be no approval.
    except Exception as error:
        raise ModuleError(
            f"the capability {REGISTER_APPROVAL_PROVIDER.name!r} failed: {type(error).__name__}: {error}",
            hint="It must be a function that takes an approval provider: fix or remove the module that "
            "registers it.",
        ) from error


def _question(request: ApprovalRequest) -> tuple[str, bool]:
    """Return the question, and whether it shows the request in full."""
    details = [(name, value_text(value)) for name, value in request.details.items()]
    texts = [request.action] + [
        f"{name}: {value}" for name, value in details if value not in request.action
    ]
    whole = all(len(text) <= _MAX_SHOWN for text in texts)
    action, *more = (_quote(text) for text in texts)
    lines = [f"Allow {visible(request.tool_name, 60)}: {action}", *more]
    return "\n  ".join(lines) + f" ({visible(request.risk_level, 20)} risk)", whole


def _quote(text: str) -> str:
    """Return `text` with its lines marked, so that none looks like part of the question."""
    lines = text[:_MAX_SHOWN].splitlines() or [""]
    rows = [visible(line, _MAX_SHOWN) for line in lines]
    if len(text) > _MAX_SHOWN:
        rows.append(f"… and {len(text) - _MAX_SHOWN:,} more characters, not shown")
    return rows[0] if len(rows) == 1 else "".join(f"\n  | {line}" for line in rows)


NO_MODES = "no module of this session has approval modes"

MEANINGS = {
    "ask": "reading needs no approval, edits and commands ask",
    "edits": "edits in the working directory need no approval either",
    "propose": "nothing is changed before you accept a proposal of the model",
    "read-only": "nothing may be changed",
    "auto": "only calls known to be dangerous ask; rules can still deny",
}
"""The meaning of each mode, for users."""


def current_mode(coordinator: Any) -> str | None:
    """The mode of the session; None if no module has modes."""
    control = MODE.of(coordinator)
    return None if control is None else control.mode


def policy_other_than_asking(coordinator: Any) -> str | None:
    """Describe the policy that answers without asking; None if the user is asked."""
    system = coordinator.approval_system
    return system.policy if isinstance(system, Approvals) and system.policy != "ask" else None


async def set_mode(coordinator: Any, mode: str) -> None:
    """Change the mode of the session.

    Raises:
        ConfigError: No module has modes, or there is no such mode.
    """
    control = MODE.of(coordinator)
    if control is None:
        raise ConfigError(f"cannot set the mode to '{mode}': {NO_MODES}", hint=ADD_MODULE)
    try:
        await control.set(mode)
    except ValueError as error:
        raise ConfigError(str(error), is_usage=True) from None


class Decision(NamedTuple):
    """The decision on a tool call.

    Attributes:
        action: ``allow``, ``ask`` or ``deny``.
        by: The rule or setting that decided.
        reason: The reason; None if there is none.
        rule: The address of the rule in the plan; None if no rule decided.
    """

    action: str
    by: str
    reason: str | None
    rule: tuple[str, ...] | None


Decide = Callable[..., Decision]
"""Decides on a call like the session would, without asking: `decide(tool, input, working_dir=…, mode=…)`."""


@contextlib.asynccontextmanager
async def open_policy(plan: ResolvedPlan) -> AsyncGenerator[Decide]:
    """The policy of a plan, from its own module, mounted without the rest of the plan.

    Raises:
        ConfigError: No hook of the plan applies rules, or its config is invalid.
        SourceError: The module is not available.
    """
    entries = _entries(plan.mount_plan())
    async with mount_entries(plan, entries) as coordinator:
        decide = APPROVAL_POLICY.of(coordinator)
        if decide is None:
            raise ConfigError(f"the plan '{plan.name}' has no approval rules", hint=ADD_MODULE)
        yield _as_decisions(decide, entries)


_REFUSING = {"bash": "tool-bash", "web_fetch": "tool-web", "web_search": "tool-web"}
"""Tools that refuse calls because of their config, and their modules."""


async def find_refusal(plan: ResolvedPlan, tool: str, input: Mapping[str, Any]) -> Decision | None:
    """Return the decision of a bundled tool that refuses a call itself, whatever the rules say; None if it does not.

    Raises:
        ConfigError: The config of its module is invalid.
    """
    module = _REFUSING.get(tool)
    entries = [entry for entry in plan.mount_plan()["tools"] if entry["module"] == module]
    # A module of others is not run for this.
    if not entries or any(entry.get("source") for entry in entries):
        return None
    async with mount_entries(plan, entries, runs_commands=True) as coordinator:
        check = tool_check(tool).of(coordinator)
        if check is None or not await check(input, None):
            return None
    key = str(entries[-1].get("instance_id") or module)
    return Decision(
        "deny", "the tool itself", f"{module} refuses it, whatever the rules say", ("tools", key)
    )


@contextlib.asynccontextmanager
async def open_guards(plan: ResolvedPlan) -> AsyncGenerator[TestGuards]:
    """The commands of a plan that decide on tool calls, mounted without the rest of the plan.

    Raises:
        ConfigError: The plan has no hooks-shell, or its config is invalid.
        SourceError: The module is not available.
    """
    entries = [e for e in plan.mount_plan()["hooks"] if e["module"] == "hooks-shell"]
    async with mount_entries(plan, entries, runs_commands=True) as coordinator:
        test = TEST_GUARDS.of(coordinator)
        if test is None:
            raise ConfigError(
                f"the plan '{plan.name}' has no hooks-shell", hint="See: amplifier docs hooks-shell"
            )
        yield test


def policy_of_session(plan: ResolvedPlan, coordinator: Any) -> Decide | None:
    """The policy that an open session of the plan applies now; None if it has none."""
    decide = APPROVAL_POLICY.of(coordinator)
    return None if decide is None else _as_decisions(decide, _entries(plan.mount_plan()))


def _entries(mount_plan: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [entry for entry in mount_plan["hooks"] if "approval" in entry["module"]]


def _as_decisions(decide: Any, entries: Sequence[Mapping[str, Any]]) -> Decide:
    keys = [str(entry.get("instance_id") or entry["module"]) for entry in entries]

    def decision(tool: str, input: Mapping[str, Any], **options: str | None) -> Decision:
        decided = decide(tool, input, **options)
        rule = None
        if decided["rule"] is not None:
            key, number = decided["rule"]
            rule = (key, str(number))
            if key != "approvals":
                rule = ("hooks", keys[-1], "config", *rule) if keys else None
        return Decision(decided["decision"], decided["by"], decided["reason"], rule)

    return decision


def place_of_rule(plan: ResolvedPlan, decision: Decision) -> str | None:
    """The file and line of the rule that decided; None if none did."""
    if decision.rule is None:
        return None
    at = plan.origin(decision.rule)
    file = at.file if not os.path.isabs(at.file) else os.path.relpath(at.file)
    path = at.file if file.startswith("..") else file
    return f"{path}:{at.line}" if at.line else path
