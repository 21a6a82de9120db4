"""Decide on tool calls, ask, remember answers, and log decisions.

An answer is remembered for one call: the same tool in the same working directory with the same
input or, for tools that change a file, the same file. For the session, approving an edit in the
working directory approves all edits in the folder of the file and below. An answer can also apply to what a
rule selects; such a rule has the form of a plan's rules, but never allows what the mode `auto` would ask
about. Only digests are stored, so that no secret in a command ends up in the file.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from pydantic import ValidationError

from amplifier_core.approval import (
    ApprovalTimeoutError,
    ToolApproval,
    ToolApprovalAnswer,
    ToolApprovalSystem,
)
from amplifier_core.cancellation import await_result, is_failure, task_cancel_count
from amplifier_core.events import APPROVAL_DENIED, APPROVAL_GRANTED, APPROVAL_REQUIRED, TOOL_PRE
from amplifier_core.models import HookResult
from amplifier_modules._shared.files import append_record, read_records
from amplifier_modules._shared.history.values import CALL_TYPES, as_mapping, mappings, read_kind
from amplifier_modules._shared.module.config import parse_config
from amplifier_modules._shared.privacy import session_redactor
from amplifier_modules.hooks_approval.config import (
    MODE_CHANGED,
    MODULE_ID,
    PROPOSE,
    PROPOSED,
    ApprovalConfig,
    ApprovalMode,
    Mode,
    PlanRules,
    Rule,
    resolve_mode,
)
from amplifier_modules.hooks_approval.read_only_commands import Programs
from amplifier_modules.hooks_approval.rules import (
    DEFAULT,
    EDITS,
    READS,
    Call,
    Policy,
    Verdict,
    allowances,
    danger_in,
    judge,
    read_host,
    selects,
)
from amplifier_support.clock import utc_now
from amplifier_support.files import is_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.redaction import Redactor
from amplifier_support.session_capabilities import (
    APPROVAL_POLICY,
    CONFIG_DIR,
    MENTIONS,
    OUTSIDE_SANDBOX,
    REMEMBERED_APPROVALS,
    SANDBOX,
    SESSION_DIR,
    WORKING_DIR,
    tool_check,
    tool_delegates,
    tool_sandbox,
    tool_working_dir,
)

if TYPE_CHECKING:
    from amplifier_modules.hooks_approval.proposing import Proposing

logger = logging.getLogger(__name__)


# -- answers that are remembered ---------------------------------------------------------


FILE_NAME = "approvals.jsonl"

_SUB = """
    git hg svn npm pnpm yarn bun cargo go uv poetry pdm hatch rye pip pip3 pipx conda docker podman helm
    apt apt-get brew dotnet gradle mvn bundle rails mix composer deno terraform flutter dart swift just task
    npx bunx uvx
"""
_SUBCOMMANDS = frozenset(_SUB.split())
"""Programs whose first argument says what they do."""

_ANY = """
    python python2 python3 pypy pypy3 node nodejs perl ruby php lua luajit tclsh osascript Rscript R julia java
    jshell ghci irb ipython awk gawk mawk sed vi vim nvim emacs ed expect tee xdg-open open tar zip man less
"""
_RUN_ANYTHING = frozenset(_ANY.split())
"""Interpreters, and programs that do what their arguments say: no beginning of their commands is offered."""

_AFTER_RUN = {"npm": "run", "pnpm": "run", "yarn": "run", "bun": "run", "deno": "task"}
_RUNS_OTHERS = frozenset({"exec", "run", "dlx", "x", "eval", "create", "shell"})
_SPECIAL = frozenset("*?[]\\ \t\n'\"")


class Range(NamedTuple):
    """Calls that a remembered answer allows.

    Attributes:
        text: The calls, for people.
        rule: The rule that selects them; None for exactly the call that was asked about.
    """

    text: str
    rule: Rule | None = None


def _find_ranges(call: Call, redactor: Redactor) -> tuple[list[Range], int]:
    """The ranges that an answer about a call may have, from narrow to wide, and the position of the usual one.

    Args:
        call: The call.
        redactor: Finds secrets; no rule contains one, because it may be stored.
    """
    if call.command is not None:
        ranges = [Range("exactly this command"), *_beginnings(call, redactor)]
        usual = _least_words(call.words or []) or 0
        counts = [
            candidate.rule and len(str(candidate.rule.command).split()) - 1 for candidate in ranges
        ]
        return ranges, counts.index(usual) if usual in counts else 0
    if call.changes_one_file:
        folders = [*_folders(call)]
        path = call.places[0].real
        label = os.path.relpath(path, call.base) if is_below(path, call.base) else path
        return [Range(f"{call.tool} {label}"), *folders], 1 if folders else 0
    host = read_host(call)
    if host is not None:
        rule = Rule(action="allow", tool=call.tool, host=host)
        return [Range("exactly this call"), Range(f"pages of {host}", rule)], 1
    if "url" in call.values or call.tool in EDITS:
        return [Range(f"exactly this call of {call.tool}")], 0
    every = Range(f"every call of {call.tool}", Rule(action="allow", tool=call.tool))
    return [Range(f"exactly this call of {call.tool}"), every], 0


def _beginnings(call: Call, redactor: Redactor) -> Iterator[Range]:
    """The commands that begin like a call's, from its whole command to its first words."""
    words = call.words or []
    plain = next((n for n, word in enumerate(words) if not word or _SPECIAL & {*word}), len(words))
    least = _least_words(words)
    if call.unclear is not None or danger_in(call.command or "") or least is None:
        return
    for count in range(plain, least - 1, -1):
        pattern = " ".join([*words[:count], "*"])
        if redactor.text(pattern) != pattern:
            continue
        action = "sandboxed" if call.is_sandboxed else "allow"
        rule = Rule(action=action, tool=call.tool, command=pattern)
        yield Range(f"commands that start with {shlex.join(words[:count])}", rule)


def _least_words(words: Sequence[str]) -> int | None:
    """The words with which a command must begin to be known by them; None if none suffice."""
    program = words[0].rsplit("/", 1)[-1] if words else ""
    if program in ("python", "python3") and words[1:2] == ["-m"]:
        return 3
    if not program or program in _RUN_ANYTHING:
        return None
    following = words[1] if len(words) > 1 else ""
    if program not in _SUBCOMMANDS:
        return 1
    if not following or following.startswith("-"):
        return None
    if _AFTER_RUN.get(program) == following or (program == "uv" and following == "run"):
        return None if words[2:3] == [] or words[2].split("/")[-1] in _RUN_ANYTHING else 3
    return None if following in _RUNS_OTHERS and program != "cargo" else 2


def _folders(call: Call) -> Iterator[Range]:
    """The edits in the folder of a call's file, in the one above and so on, up to the working directory."""
    if not call.edits_inside:
        return
    folder = os.path.dirname(call.places[0].real)
    while is_below(folder, call.base):
        relative = os.path.relpath(folder, call.base)
        inside = relative != os.curdir
        if not _SPECIAL & {*relative}:
            pattern = f"{relative}/**" if inside else "**"
            rule = Rule(action="allow", tool=["write_file", "edit_file"], path=pattern)
            yield Range(f"edits in {relative}/" if inside else "edits in this directory", rule)
        if not inside:
            return
        folder = os.path.dirname(folder)


class Memory:
    """The calls allowed for this session, and for the project.

    Args:
        folder: The user's own settings folder; None stores nothing beyond the session.
        session: What is allowed for this session, shared with sub-agents.
        policy: Applies stored rules to calls.
    """

    def __init__(self, folder: str | None, session: set[str], policy: Policy) -> None:
        self._file = Path(folder) / FILE_NAME if folder else None
        self._session = session
        self._policy = policy
        self._warned = False

    @property
    def file(self) -> str | None:
        """The file in which answers are stored for later sessions; None if they are not."""
        return None if self._file is None else str(self._file)

    def recall(self, call: Call) -> str | None:
        """``session`` or ``always`` if the call was allowed for that long, otherwise None."""
        digest = _digest(call)
        if digest in self._session or any(
            self._allows(json.loads(key), call) for key in self._session if key.startswith("{")
        ):
            return "session"
        if self._file is None:
            return None
        try:
            records = list(read_records(self._file))
        except OSError as error:
            self._warn(f"cannot read the approvals given for always: {error}")
            return None
        known = any(
            record.get("digest") == digest or self._allows(record, call) for record in records
        )
        return "always" if known else None

    def _allows(self, record: dict[str, Any], call: Call) -> bool:
        fields = record.get("rule")
        if fields is None or record.get("working_dir") != call.base:
            return False
        try:
            rule = Rule.model_validate(fields)
        except ValidationError:
            self._warn(f"ignored an approval that is not valid: {fields!r}")
            return False
        if call.command is not None and danger_in(call.command):
            return False
        return (call.tool not in EDITS or call.edits_inside) and selects(self._policy, rule, call)

    def keep(self, call: Call, range_: Range, *, always: bool) -> None:
        """Remember that calls are allowed; if it cannot be stored, for the session only."""
        about: dict[str, Any] = {"digest": _digest(call)}
        if range_.rule is not None:
            about = {"rule": range_.rule.model_dump(exclude_none=True)}
        record = {**about, "working_dir": call.base}
        key = json.dumps(record) if range_.rule is not None else about["digest"]
        if not always or self._file is None:
            self._session.add(key)
            return
        try:
            append_record(self._file, {**record, "tool": call.tool, "at": utc_now().isoformat()})
        except OSError as error:
            self._session.add(key)
            self._warn(f"cannot store the approval, so it is for this session only: {error}")

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s: %s", MODULE_ID, message)


def _digest(call: Call) -> str:
    what: Any = dict(call.values)
    if call.changes_one_file:
        what = sorted(place.real for place in call.places)
    about = [call.base, call.tool, what]
    if call.command is not None and call.start != call.base:
        # The same command may mean something else there.
        about.append(call.start)
    if call.command is not None and call.is_sandboxed:
        about.append("sandboxed")
    text = json.dumps(about, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("ascii")).hexdigest()


# -- the hook: decide, ask, remember, and log decisions ----------------------------------


_MAX_SHOWN = 4000

ModelCall = tuple[str, str, Mapping[str, Any]]
"""A tool call of the model: id, tool and input."""


def subject(call: Call, redact: Callable[[Any], Any] = lambda value: value) -> str:
    """The subject of the call: the file it changes, its command, or its whole input.

    Args:
        call: The call.
        redact: Replaces secrets in text and data.
    """
    if call.changes_one_file:
        return redact(call.places[0].real)
    if call.command is None:
        return json.dumps(redact(dict(call.values)), default=repr, ensure_ascii=False)
    rest = {key: value for key, value in call.values.items() if value is not call.command}
    command = redact(call.command)
    return f"{command} {json.dumps(redact(rest), default=repr)}" if rest else command


def question_about(call: Call, verdict: Verdict) -> tuple[str, bool]:
    """The question for the user, and whether it shows the whole subject."""
    text = subject(call)
    whole = len(text) <= _MAX_SHOWN
    if not whole:
        left_out = len(text) - _MAX_SHOWN
        text = f"{text[:_MAX_SHOWN]} … and {left_out} more characters not shown"
    if "\n" in text or "\r" in text:
        # Marked line by line, so that no line of a command can pass for part of the question.
        text = "".join(f"\n  | {line}" for line in text.splitlines()) + "\n"
    if call.tool == "bash" and text == call.command:
        question = f"Run `{text}`?"
    else:
        question = f"Allow {call.tool}: {text}"
    if verdict.why:
        because = "Asking because " if verdict.why.startswith("it ") else "Reason: "
        question += f" ({because}{verdict.why})"
    return question, whole


def _with_folder(call: Call, why: str | None) -> str | None:
    """The reason to ask, including the folder a command runs in if the call does not show it."""
    if call.command is None or call.start == call.base:
        return why
    where = f"it runs in {call.start}, where the last command ended"
    return f"{where}, and {why}" if why else where


def refusal(policy: Policy, call: Call, verdict: Verdict, *, asked: bool) -> str:
    """The message to the model about a denied call."""
    if asked:
        why = f"{call.tool}: {verdict.why}"
        if call.unclear is not None:
            why += f"; asked because {call.unclear}"
    else:
        why = f"{call.tool}: denied by {verdict.by} of the approval settings"
        why += f": {verdict.why}" if verdict.why else ""
    allowed = allowances(policy, call.tool)
    hint = f" Allowed without asking: {allowed}." if allowed else ""
    return f"{why}. Do not try to reach the same in another way; go on without it or ask the user.{hint}"


async def _calls_of_last_message(context: Any) -> list[ModelCall]:
    """The tool calls of the model's last message."""
    messages = [] if context is None else await await_result(context.get_messages())
    for message in reversed(list(mappings(messages))):
        if message.get("role") == "assistant":
            return list(_calls_in(message))
    return []


def _calls_in(message: Mapping[str, Any]) -> Iterator[ModelCall]:
    known: set[str] = set()
    blocks = [
        mapping for mapping in mappings(message.get("content")) if read_kind(mapping) in CALL_TYPES
    ]
    for block in (*blocks, *mappings(message.get("tool_calls"))):
        id = block.get("id")
        name = block.get("name") or block.get("tool")
        values = block.get("input") if "input" in block else block.get("arguments")
        fields = as_mapping(values)
        if isinstance(id, str) and isinstance(name, str) and fields is not None and id not in known:
            known.add(id)
            yield id, name, fields


AUDIT_NAME = "approvals.jsonl"

ONCE, SESSION, ALWAYS, DENY = "Allow once", "Allow for this session", "Allow always", "Deny"
OUTSIDE = "Allow once, outside the sandbox"

_ALLOWING = frozenset({"allow", ONCE.lower(), SESSION.lower(), ALWAYS.lower()})
_MAX_AUDITED = 1000
"""Characters of a call's subject in the audit."""
_CARRIED = ("tool_call_id", "turn_id", "span_id", "parent_span_id", "iteration")


_THIS_CALL = Range("exactly this call")


class ApprovalHook:
    """Decide on the tool calls of one session.

    Raises:
        ValueError: A rule of the plan is not valid.
    """

    def __init__(self, coordinator: Any, config: ApprovalConfig) -> None:
        self._coordinator = coordinator
        self._config = config
        listed = (coordinator.config or {}).get("approvals")
        rules = parse_config(PlanRules, {"rules": listed}, "approvals").rules if listed else []
        self._policy = Policy(config, rules, Programs(self._base))
        self._mode = resolve_mode(coordinator, config.mode)
        self._memory = Memory(CONFIG_DIR.of(coordinator), _shared(coordinator), self._policy)
        self._warned = False
        self._asked: set[Any] = set()  # ids of calls; an answer may allow others like it

    @property
    def mode(self) -> ApprovalMode:
        return self._mode

    async def on_tool(self, event: str, data: Any) -> HookResult:
        """Handle `tool:pre`: whether the call may run. On any error the answer is no."""
        cancels = 0
        try:
            cancels = task_cancel_count()
            return await self._decide(data)
        # A hook that fails is skipped, and the call would run. The approval system may also raise what is
        # no `Exception`, such as `SystemExit`, or a cancellation although the session was not stopped.
        except BaseException as error:
            if not (isinstance(error, Exception) or is_failure(error, cancels)):
                raise
            if isinstance(error, asyncio.CancelledError):
                return _denial("the approval request was not answered")
            logger.exception("%s: could not decide on a call; denying it", MODULE_ID)
            return _denial(f"the approval check failed ({type(error).__name__})")

    def decide(
        self,
        tool: str,
        input: Mapping[str, Any],
        *,
        working_dir: str | None = None,
        mode: Mode | None = None,
    ) -> dict[str, Any]:
        """The capability `approval.policy`: the decision on a call, without asking."""
        base = self._base if working_dir is None else os.path.realpath(working_dir)
        call = self._call(tool, input, base)
        verdict = self._decision_on(call, mode or self._mode.mode)
        return {
            "decision": verdict.action,
            "by": verdict.by,
            "reason": verdict.why,
            "rule": None if verdict.rule is None else list(verdict.rule),
        }

    def _decision_on(self, call: Call, mode: Mode) -> Verdict:
        verdict = judge(self._policy, call, mode)
        if verdict.action == "allow" and self._is_required(call.tool):
            verdict = Verdict("ask", "session_state", "a module asks for approval of this tool")
        held = None
        if verdict.action == "ask" and self._config.remember:
            held = self._memory.recall(call)
        return verdict if held is None else Verdict("allow", f"remembered ({held})")

    def _is_required(self, tool: str) -> bool:
        """Return True if a module, such as the published hooks-mode, requires approval of each call of a tool."""
        state: Mapping[str, Any] = getattr(self._coordinator, "session_state", {})
        return tool in (state.get("require_approval_tools") or ())

    @property
    def _base(self) -> str:
        return os.path.realpath(WORKING_DIR.of(self._coordinator) or ".")

    def _find_start(self, tool: str) -> str | None:
        """The folder in which the tool's last command ended, where the next one starts."""
        where = tool_working_dir(tool).of(self._coordinator)
        folder = where() if where is not None else None
        return os.path.realpath(folder) if isinstance(folder, str) else None

    def _call(
        self, tool: str, values: Mapping[str, Any], base: str, start: str | None = None
    ) -> Call:
        sandbox_of = tool_sandbox(tool).of(self._coordinator)
        of_tool = sandbox_of() if sandbox_of is not None else None
        of_session = SANDBOX.of(self._coordinator)
        has_policy = of_session is not None and of_session.policy is not None
        return Call(
            tool,
            values,
            base,
            start,
            is_sandboxed=of_tool is not None and of_tool.enforced,
            ignores_sandbox=has_policy and sandbox_of is None,
            mentions=MENTIONS.of(self._coordinator),
            plan_files=() if of_session is None else of_session.plan_files,
            delegates=self._delegates(tool),
        )

    def _delegates(self, tool: str) -> bool:
        """Return True if the mounted tool only gives work to sub-agents, whose calls come here as well."""
        delegates = tool_delegates(tool).of(self._coordinator)
        # Another module may have replaced the tool that says so.
        is_own = getattr(delegates, "__self__", None) is self._coordinator.get("tools", tool)
        return delegates is not None and is_own and delegates()

    async def _decide(self, data: Any) -> HookResult:
        if not isinstance(data, Mapping):
            return _denial("this is not a tool call")
        fields = cast("Mapping[str, Any]", data)
        tool = fields.get("tool_name")
        inputs = [fields[key] for key in ("tool_input", "input") if key in fields]
        if not isinstance(tool, str) or not tool or not inputs:
            return _denial("this is not a tool call")
        # A hook may have changed the input under either name: what runs is one of the two.
        distinct = inputs[:1] if len(inputs) == 1 or inputs[0] == inputs[1] else inputs
        base = self._base
        for values in distinct:
            if not isinstance(values, Mapping):
                return _denial("the input is not an object")
            call = self._call(tool, cast("Mapping[str, Any]", values), base, self._find_start(tool))
            result = await self._decide_on(call, fields)
            if result.action != "continue":
                return result
        return HookResult(action="continue")

    async def _decide_on(self, call: Call, data: Mapping[str, Any]) -> HookResult:
        verdict = self._decision_on(call, self._mode.mode)
        asked = verdict.action == "ask"
        if asked and await self._is_futile(call, data):
            verdict = Verdict("allow", "no question, as the call cannot succeed")
        elif asked:
            verdict = verdict._replace(why=_with_folder(call, verdict.why))
            verdict = await self._ask(call, verdict, data)
        if verdict.changed is not None:
            call = self._call(call.tool, verdict.changed, call.base, call.start)
        self._audit(call, verdict, data)
        if verdict.action == "deny":
            await self._emit(APPROVAL_DENIED, call, verdict, data)
            return _denial(refusal(self._policy, call, verdict, asked=asked))
        if asked:
            await self._emit(APPROVAL_GRANTED, call, verdict, data)
        if verdict.changed is not None:
            inputs = {key: verdict.changed for key in ("tool_input", "input") if key in data}
            return HookResult(action="modify", data={**data, **inputs})
        return HookResult(action="continue")

    async def _is_futile(self, call: Call, data: Mapping[str, Any]) -> bool:
        """Return true if a call can only fail, which its tool then guarantees by the span."""
        span = data.get("span_id")
        calls = await _calls_of_last_message(self._coordinator.get("context"))
        return isinstance(span, str) and await self._cannot_succeed(
            call, calls, data.get("tool_call_id"), span
        )

    async def _cannot_succeed(
        self, call: Call, calls: Sequence[ModelCall], id: Any, span: str | None = None
    ) -> bool:
        """Return true if a call of the model's last message would fail and its error reveals nothing.

        Args:
            call: The call.
            calls: All calls of the message.
            id: The id of the call.
            span: Its span, with which the tool makes sure of it.
        """
        check = tool_check(call.tool).of(self._coordinator)
        # Another module may have replaced the tool that promises to fail.
        is_own = getattr(check, "__self__", None) is self._coordinator.get("tools", call.tool)
        if check is None or not is_own:
            return False
        if not call.changes_one_file:
            return await check(call.values, span)
        file = call.places[0].real
        # The error may quote the file.
        reading = self._call("read_file", {"file_path": file}, call.base)
        if self._decision_on(reading, self._mode.mode).action != "allow":
            return False
        for earlier, name, values in calls:
            if earlier == id:
                break
            other = self._call(name, values, call.base, self._find_start(name))
            changes_another = other.changes_one_file and other.places[0].real != file
            if not changes_another and self._decision_on(other, self._mode.mode).by != READS:
                return False
        return await check(call.values, span)

    async def _ask(self, call: Call, verdict: Verdict, data: Mapping[str, Any]) -> Verdict:
        system = self._coordinator.approval_system
        if system is None:
            return Verdict("deny", "nobody to ask", "no one can be asked for approval")
        await self._emit(APPROVAL_REQUIRED, call, verdict, data)
        self._asked.add(data.get("tool_call_id"))
        try:
            answer, range_ = await self._answer(system, call, verdict, data)
        except ApprovalTimeoutError:
            return Verdict("deny", "timeout", f"no answer within {self._config.timeout:g} s")
        by = "answer" if answer.by == "user" else answer.by
        option: Any = answer.option  # whatever the app returned
        choice = option.strip().lower() if isinstance(option, str) else ""
        if choice == OUTSIDE.lower() and self._allow_outside(call, data, by):
            return Verdict("allow", f"{by} ({choice})")
        if choice not in _ALLOWING:
            why = "it needs approval, which was denied"
            if answer.comment:
                who = {"answer": "the user says: ", "program": "the program that decides says: "}
                why += f"; {who.get(by, '')}{answer.comment}"
            return Verdict("deny", by, why)
        if answer.input is not None:
            return self._on_changed(call, answer.input, f"{by} ({choice}, with changed input)")
        if choice in (SESSION.lower(), ALWAYS.lower()) and self._config.remember:
            self._memory.keep(call, range_, always=choice == ALWAYS.lower())
        return Verdict("allow", f"{by} ({choice})")

    def _on_changed(self, call: Call, values: dict[str, Any], by: str) -> Verdict:
        """The verdict on the changed input of a call that was allowed: no rule that denies is overridden."""
        changed = self._call(call.tool, values, call.base, call.start)
        verdict = self._decision_on(changed, self._mode.mode)
        return verdict if verdict.action == "deny" else Verdict("allow", by, changed=values)

    def _allow_outside(self, call: Call, data: Mapping[str, Any], by: str) -> bool:
        """Let the tool run this call outside the sandbox, if the answer came from the user."""
        span = data.get("span_id")
        if by != "answer" or not isinstance(span, str) or call.command is None:
            return False
        allowed = OUTSIDE_SANDBOX.of(self._coordinator)
        if allowed is None:
            allowed = dict[str, str]()
            OUTSIDE_SANDBOX.register(self._coordinator, allowed)
        allowed[span] = call.command
        return True

    async def _answer(
        self, system: Any, call: Call, verdict: Verdict, data: Mapping[str, Any]
    ) -> tuple[ToolApprovalAnswer, Range]:
        """Ask, in full where the app can show all of the input.

        Returns:
            The answer, and the calls that it applies to if it is remembered.

        Raises:
            ApprovalTimeoutError: There was no answer in time.
        """
        question, whole = question_about(call, verdict)
        if not isinstance(system, ToolApprovalSystem):
            options = self._options(whole)
            timeout = self._config.timeout
            answer = await await_result(system.request_approval(question, options, timeout, "deny"))
            return ToolApprovalAnswer(answer), _THIS_CALL
        options = self._options(whole=True)
        if call.is_sandboxed and isinstance(data.get("span_id"), str):
            options.insert(-1, OUTSIDE)
        ranges, usual = _find_ranges(call, self._redactor())
        position, total = await self._position(call, data)
        request = ToolApproval(
            question=question,
            tool_name=call.tool,
            tool_input=call.values,
            working_dir=call.base,
            options=options,
            reason=verdict.why,
            ranges=[offered.text for offered in ranges],
            usual_range=usual,
            stored_in=self._memory.file,
            position=position,
            total=total,
        )
        reply = await system.request_tool_approval(request, self._config.timeout)
        chosen = usual if reply.range is None else reply.range
        is_known = 0 <= chosen < len(ranges)
        return reply, ranges[chosen] if is_known else _THIS_CALL

    async def _position(self, call: Call, data: Mapping[str, Any]) -> tuple[int, int]:
        """The position of a call among those of the model's last message that ask, and their number."""
        this = data.get("tool_call_id")
        calls = await _calls_of_last_message(self._coordinator.get("context"))
        asking: list[str] = []
        for id, name, values in calls:
            other = self._call(name, values, call.base, self._find_start(name))
            if id in self._asked or (
                self._decision_on(other, self._mode.mode).action == "ask"
                and not await self._cannot_succeed(other, calls, id)
            ):
                asking.append(id)
        return (asking.index(this) + 1, len(asking)) if this in asking else (1, 1)

    def _options(self, whole: bool) -> list[str]:
        # Only a question shown whole can be agreed to for longer than once.
        if not self._config.remember or not whole:
            return [ONCE, DENY]
        return [ONCE, SESSION, *([ALWAYS] if self._memory.file is not None else []), DENY]

    async def _emit(
        self, event: str, call: Call, verdict: Verdict, data: Mapping[str, Any]
    ) -> None:
        carried = {key: data[key] for key in _CARRIED if key in data}
        facts: dict[str, Any] = {
            "tool_name": call.tool,
            "decided_by": verdict.by,
            "reason": verdict.why,
        }
        if verdict.by == DEFAULT:
            facts["by_default"] = True
        await self._coordinator.hooks.emit(event, {**carried, **facts})

    def _audit(self, call: Call, verdict: Verdict, data: Mapping[str, Any]) -> None:
        folder = SESSION_DIR.of(self._coordinator)
        if not self._config.audit or not folder:
            return
        redact = self._redactor().value
        facts = {
            "ts": utc_now().isoformat(),
            "tool": call.tool,
            "tool_call_id": data.get("tool_call_id"),
            "decision": verdict.action,
            "by": verdict.by,
            "reason": verdict.why,
        }
        # Redacted before it is cut: a part of a secret may not look like one.
        record = {**redact(facts), "what": redact(subject(call, redact))[:_MAX_AUDITED]}
        try:
            append_record(Path(folder) / AUDIT_NAME, record)
        except OSError as error:
            if not self._warned:
                self._warned = True
                logger.warning("%s: cannot log decisions: %s", MODULE_ID, error)

    def _redactor(self) -> Redactor:
        """Return what redacts the log of decisions; the secrets may have changed since the last one."""
        return session_redactor(self._coordinator)


def _denial(reason: str) -> HookResult:
    return HookResult(action="deny", reason=reason)


def _shared(coordinator: Any) -> set[str]:
    """Return the calls allowed for the session, shared with its sub-agents."""
    remembered = REMEMBERED_APPROVALS.of(coordinator)
    if not isinstance(remembered, set):
        remembered = set[str]()
        REMEMBERED_APPROVALS.register(coordinator, remembered)
    return cast("set[str]", remembered)


async def mount(coordinator: Any, settings: ApprovalConfig) -> Callable[[], None]:
    """Decide on every `tool:pre`; settings as in `ApprovalConfig`.

    Returns:
        A cleanup function that removes the hook.
    """
    hook = ApprovalHook(coordinator, settings)
    APPROVAL_POLICY.register(coordinator, hook.decide)
    names = [MODE_CHANGED, PROPOSED]
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: names)
    proposing: Proposing | None = None

    async def follow(event: str, data: Any) -> None:
        """Keep up the mode `propose`, from when the session first enters it."""
        nonlocal proposing
        if hook.mode.mode == PROPOSE and proposing is None:
            from amplifier_modules.hooks_approval.proposing import Proposing

            proposing = Proposing(coordinator, hook.mode, settings.timeout)
        if proposing is not None:
            await proposing.follow()

    await follow(MODE_CHANGED, None)
    stops = [
        coordinator.hooks.register(
            TOOL_PRE, hook.on_tool, priority=settings.priority, name=MODULE_ID
        ),
        coordinator.hooks.register(MODE_CHANGED, follow, name=MODULE_ID),
    ]

    def stop() -> None:
        for each in stops:
            each()
        if proposing is not None:
            proposing.close()

    return stop
