"""Open the session of a request: its renderer, its approvals, and what is shown first.

The notices about a plan are shown in full once, and then as one line until they change: a bundle with many
includes has dozens, which its user cannot fix.

Text that modules print while a screen is drawn becomes whole lines of that screen. A module may also draw
on the terminal itself, such as a spinner in a thread of its own; it does not know where the cursor is, and
may go on when the prompt has been stopped.
"""

from __future__ import annotations

import asyncio
import contextlib
import gc
import hashlib
import json
import shlex
import sys
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar, cast

from amplifier_app.base import paths
from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import make_private_folder, write_private
from amplifier_app.base.slow_steps import report_slow_steps
from amplifier_app.base.stdio import Output, diverted_stderr, is_dumb, stderr_is_tty
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.run.choose import Chosen, open_sources, terminal_to_ask_on
from amplifier_app.commands.run.request import Request
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.resolution import unset
from amplifier_app.plan.tree.entries import entry_keys
from amplifier_app.render import text
from amplifier_app.runtime.approvals import MEANINGS, Approvals
from amplifier_app.runtime.capabilities import credential_variable
from amplifier_app.runtime.describe import count
from amplifier_app.runtime.module_modes import OFF, switch_module_mode
from amplifier_app.runtime.mount import Opening
from amplifier_app.runtime.observers.notices import show_logs
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.observers.visibility import Shown, Visibility
from amplifier_app.runtime.session import Adjustment, OpenSession, ToolSelection, open_session
from amplifier_app.sessions.summary import WAITING_FILE
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_app.trust import instruction_files
from amplifier_core.events import CONTENT_BLOCK_START, PROVIDER_REQUEST, TOOL_PRE
from amplifier_core.models import HookResult
from amplifier_support.journal import parse
from amplifier_support.session_capabilities import TRUSTED_DIR

if TYPE_CHECKING:
    from amplifier_app.render.screen import Screen
    from amplifier_core.approval import ToolApproval, ToolApprovalAnswer


_Answer = TypeVar("_Answer")


# -- output of modules while a screen is drawn, as whole lines of that screen ------------


@contextlib.asynccontextmanager
async def printed_lines(renderer: Renderer) -> AsyncGenerator[None]:
    """Show what is printed to stdout and stderr with `renderer`, if it takes that."""
    lines = _Lines(renderer, asyncio.get_running_loop())
    with diverted_stderr(lines.take):
        try:
            yield
        finally:
            lines.end()


class _Lines:
    def __init__(self, renderer: Renderer, loop: asyncio.AbstractEventLoop) -> None:
        self._renderer = renderer
        self._loop = loop
        self._thread = threading.get_ident()
        self._lock = threading.RLock()
        self._rest = ""  # the line that is not finished, from its last carriage return

    def take(self, text: str) -> bool:
        """Take a text, in any thread; False if it is to be written as it is."""
        renderer = self._renderer
        if not renderer.takes_prints:
            renderer.has_open_line = not text.endswith("\n")
            return False
        with self._lock:
            # Nothing continues a line that is drawn again and again.
            is_other = self._rest.startswith("\r") and not text.startswith(("\r", "\n", "\x1b"))
            *lines, rest = (text if is_other else self._rest + text).split("\n")
            self._rest = rest[max(rest.rfind("\r"), 0) :]
            for line in lines:
                self._show(line.removesuffix("\r").rpartition("\r")[2])
        return True

    def end(self) -> None:
        """Show a line without a line break, unless it was meant to be overwritten."""
        if self._rest and not self._rest.startswith("\r"):
            self._print(self._rest)

    def _show(self, line: str) -> None:
        if threading.get_ident() == self._thread:
            self._print(line)
        else:
            with contextlib.suppress(RuntimeError):  # the loop has ended, and with it the session
                self._loop.call_soon_threadsafe(self._print, line)

    def _print(self, line: str) -> None:
        renderer = self._renderer
        if module := renderer.other_display:
            renderer.other_display = None
            hint = "see each once with --screen answer"
            renderer.notice(f"{module} also shows tool calls; {hint}", "info", "chat")
        renderer.printed(line)


def _module_with_display(hooks: Any) -> str | None:
    """Return a module that receives what a display shows: parts of answers, and tool calls."""
    receivers = [
        {name.partition(".")[0] for name in hooks.list_handlers(event)[event] if "." in name}
        for event in (CONTENT_BLOCK_START, TOOL_PRE)
    ]
    return next(iter(set[str].intersection(*receivers)), None)


# -- show the notices about a plan in full once, and then as one line until they change --


_FEW = 3
"""As many notices are shown each time."""
_MAX_PLANS = 500


def _show_plan_notices(plan: ResolvedPlan, renderer: Renderer, command: str) -> None:
    """Show the notices about a plan; `command` lists them all."""
    notices = plan.warnings
    if len(notices) > _FEW and _are_known(plan, notices):
        text = (
            f"{count(len(notices), 'notice')} about the plan, as before; list them with: {command}"
        )
        renderer.notice(text, "info", "plan")
        return
    for notice in notices:
        renderer.notice(notice, "info", "plan")


def _are_known(plan: ResolvedPlan, notices: Sequence[str]) -> bool:
    """Return True if the plan had the same notices the last time; otherwise remember them."""
    file = paths.state_dir() / "notices.json"
    known = dict(parse(_read_kept(file)) or {})
    key, digest = _digest([plan.name, *map(str, plan.files)]), _digest(sorted(notices))
    if known.pop(key, None) == digest:
        return True
    latest = [*known.items(), (key, digest)][-_MAX_PLANS:]
    _keep(file, json.dumps(dict(latest)))
    return False


def _read_kept(file: Path) -> bytes:
    try:
        return file.read_bytes()
    except OSError:
        return b""


def _keep(file: Path, text: str) -> None:
    """Remember a notice in a file; one that cannot be remembered is shown again."""
    with contextlib.suppress(SessionError):
        make_private_folder(file.parent)
        write_private(file, text)


def _digest(texts: Sequence[str]) -> str:
    return hashlib.sha256("\0".join(texts).encode(errors="surrogatepass")).hexdigest()


# -- the notice of which provider answers, and why, when the user did not name one --------


def _notify_provider(plan: ResolvedPlan, session: OpenSession, renderer: Renderer) -> None:
    """Show the provider if the file that lists it also lists others, which were left out.

    Shown on a terminal only, and again only when the choice changes.
    """
    if not plan.dropped or not stderr_is_tty():
        return
    file = plan.origin(["providers", 0]).file
    left_out = [entry for entry in plan.dropped if entry.at.file == file]
    facts = session.facts
    chosen = f"{facts.provider} ({facts.model})" if facts.model else facts.provider
    key = credential_variable(session.session)
    missing = tuple(name for entry in left_out for name in entry.variables)
    if not (left_out and (key or missing)):
        return
    if facts.provider == "local" and not key:
        text = f"the demo model ({facts.model}) answers; set up another one: amplifier init"
    else:
        verb = "stored" if key in session.mounting.stored_keys else "set"
        why = f"{key} is {verb}" if key else unset(missing)
        text = f"using {chosen} because {why}; change with --provider, --model or --profile"
    file = paths.state_dir() / "provider-notice"
    if _read_kept(file) != text.encode():
        _keep(file, text)
        renderer.notice(text, "info", "session")


# -- open the session of a request: its renderer, its approvals, and what is shown first -


_GC_THRESHOLD = 20_000
"""Objects created until garbage is collected again."""

_STOP_SECONDS = 1.0
"""Seconds after Ctrl-C at a question until the asking code is abandoned."""


def collect_garbage_rarely() -> None:
    """Collect garbage from now on, but not what exists by now, which never is garbage.

    The default threshold is for programs that use less memory than one request of a long conversation.
    """
    gc.freeze()
    gc.set_threshold(_GC_THRESHOLD)
    gc.enable()


@contextlib.asynccontextmanager
async def open_requested_session(
    request: Request,
    invocation: Invocation,
    chosen: Chosen,
    renderer: Renderer,
    approvals: Approvals,
    opening: Opening,
) -> AsyncGenerator[OpenSession]:
    """Open the session of a request and show what the user should know about it."""
    logs = show_logs(renderer, verbose=invocation.verbose)
    plan = chosen.plan
    assert invocation.report is not None
    invocation.report.plan_digest = plan.digest
    sources = await open_sources(request, chosen)
    async with (
        printed_lines(renderer),
        open_chosen(request, chosen, approvals, renderer, sources, opening) as session,
    ):
        approvals.stop = lambda: session.stop(immediate=True)
        keep_questions(session, approvals)
        approvals.warn = lambda text: renderer.notice(text, "warning", "approval")
        report_slow_steps(False)
        collect_garbage_rarely()
        renderer.other_display = _module_with_display(session.session.coordinator.hooks)
        logs.show_held(session.mounting.not_mounted)
        invocation.report.note_session(session)
        _show_plan_notices(plan, renderer, _check_command(request))
        _notice_unread_instructions(session, renderer)
        if request.provider is None and not request.is_set_up:
            _notify_provider(plan, session, renderer)
        yield session


def _end_when_parked(session: OpenSession, approvals: Approvals) -> None:
    """End the turn at the next model call once a question waits: the other calls of the step may ask, too."""

    def end(event: str, data: dict[str, Any]) -> HookResult:
        if not approvals.parked:
            return HookResult()
        return HookResult(action="deny", reason="a call waits for approval")

    session.session.coordinator.hooks.register(PROVIDER_REQUEST, end, name="parked approvals")


def keep_questions(session: OpenSession, approvals: Approvals) -> None:
    """Let approvals use the answers to a session's questions, and with the policy `park` add new questions.

    Raises:
        SessionError: The questions cannot be read.
    """
    approvals.session_id, parks = session.id, approvals.policy == "park"
    approvals.is_saved = session.saved is not None
    if parks:
        _end_when_parked(session, approvals)
    if session.saved is None or not (parks or (session.saved.path / WAITING_FILE).exists()):
        return
    from amplifier_app.sessions.waiting import Waiting

    approvals.waiting = Waiting(session.saved.path)


def _notice_unread_instructions(session: OpenSession, renderer: Renderer) -> None:
    """Name the instruction files that are not read because the project is not trusted."""
    plan, working_dir = session.plan, session.facts.working_dir
    if plan.chosen.reads_project is not None:
        return
    if "hooks-context-files" not in entry_keys(plan.tree, "hooks"):
        return
    files = instruction_files(working_dir)
    if files and TRUSTED_DIR.of(session.session.coordinator) is None:
        names = ", ".join(dict.fromkeys(file.name for file in files))
        text = f"{names} of this project: not read until you trust it with 'amplifier trust'"
        renderer.notice(text, "info", "plan")


def _check_command(request: Request) -> str:
    """The command that lists the notices about the plan of a request."""
    if request.plan is not None:
        return f"amplifier plan check -f {shlex.quote(str(request.plan))}"
    if request.profile is not None:
        return f"amplifier plan check -P {shlex.quote(request.profile)}"
    return "amplifier plan check"


@contextlib.asynccontextmanager
async def open_chosen(
    request: Request,
    chosen: Chosen,
    approvals: Approvals,
    renderer: Renderer,
    sources: AppModuleSourceResolver,
    opening: Opening | None = None,
    adjustment: Adjustment | None = None,
    **facts: Any,
) -> AsyncGenerator[OpenSession]:
    """Open the session of a request, new or resumed; see `amplifier_app.runtime.session.open_session`.

    Args:
        request: The request.
        chosen: What it resolves to.
        approvals: Who answers approval requests.
        renderer: Shows the session.
        sources: Where the modules come from.
        opening: Deadline and progress of opening.
        adjustment: Changes what is mounted; by default to the tools that the request names.
        facts: More metadata of a new session.

    Raises:
        ConfigError: There is no such mode.
    """
    plan, project = chosen.plan, chosen.project
    is_of_module = request.mode is not None and request.mode not in MEANINGS
    mode = request.mode if is_of_module else request.module_mode
    if adjustment is None and request.tools is not None:
        adjustment = ToolSelection.parse(request.tools)
    async with open_session(
        plan,
        session_id=request.session,
        resume=chosen.resume,
        save=not request.no_save,
        metadata={**({} if project is None else project.session_metadata(plan)), **facts},
        approval_system=approvals,
        mode=None if is_of_module else request.mode,
        renderer=renderer,
        sources=sources,
        opening=opening,
        adjustment=adjustment,
    ) as session:
        if mode is not None:
            coordinator, name = session.session.coordinator, None if mode == OFF else mode
            switch_module_mode(coordinator, name, is_trusted=plan.project is not None)
        yield session


def choose_renderer(
    request: Request,
    invocation: Invocation,
    display: Mapping[str, Any],
    *,
    screen: Screen | None = None,
    hold: bool = False,
) -> Renderer:
    """The renderer for stdout, the requested options and the display settings.

    Args:
        request: The request.
        invocation: The invocation.
        display: The display settings.
        screen: Where to draw on a terminal; None for stdout.
        hold: Whether stdout gets only the final answer of a run with several attempts.
    """
    renderer = _renderer(request, invocation, display, screen, hold)
    level = request.show or cast("Shown", display.get("show") or "user")
    renderer.approval_keys = display.get("approval_keys") or {}
    renderer.signals = display.get("signals") != "none"
    renderer.visibility = Visibility(level, folds=renderer.folds_thinking)
    return renderer


def _renderer(
    request: Request,
    invocation: Invocation,
    display: Mapping[str, Any],
    screen: Screen | None,
    hold: bool,
) -> Renderer:
    stdout, quiet, mode = invocation.stdout, request.quiet, request.screen_mode(display)
    if invocation.output == "json":
        return text.StderrNotices(quiet=quiet)
    if invocation.output == "stream-json":
        from amplifier_app.render.events import EventStream

        assert invocation.report is not None
        return EventStream(stdout, invocation.report, quiet=quiet)
    if not stdout.isatty() or request.schema is not None:
        progress = sys.stderr.isatty() or invocation.verbose
        return text.TextRenderer(
            stdout, quiet=quiet, progress=progress, stream=request.stream, hold=hold
        )
    if mode == "answer":
        from amplifier_app.render.plain import AnswerRenderer

        return AnswerRenderer(stdout, quiet=quiet)
    if mode == "plain" or is_dumb():
        from amplifier_app.render.plain import PlainRenderer

        return PlainRenderer(stdout, quiet=quiet)
    from amplifier_app.render.screen import AnsiScreen
    from amplifier_app.render.terminal import TerminalRenderer
    from amplifier_app.render.theme import use_theme

    use_theme(display.get("theme", "auto"))
    return TerminalRenderer(screen or AnsiScreen(stdout), quiet=quiet, chat=screen is not None)


def approvals_for(
    request: Request, renderer: Renderer, stdout: Output, *, is_plain: bool
) -> Approvals:
    """Who answers questions for approval; `is_plain` asks in lines, without drawing."""
    approvals = _default_approvals(request, renderer, stdout, is_plain=is_plain)
    if (command := request.approve_with) is not None:
        from amplifier_app.runtime.approval_program import ask_program, check_program

        check_program(command)
        approvals.program = lambda asked, timeout: ask_program(command, asked, timeout)
    return approvals


def _default_approvals(
    request: Request, renderer: Renderer, stdout: Output, *, is_plain: bool
) -> Approvals:
    terminal = terminal_to_ask_on(stdout)
    if terminal is None:
        return Approvals(request.approve or "deny")

    async def on_terminal(question: Callable[[], Awaitable[_Answer]]) -> _Answer | None:
        """Ask on the terminal; Ctrl-C stops the turn, and with it what asks."""
        from amplifier_app.chat.ask import Stopped

        await renderer.typing_paused()
        try:
            with renderer.paused():
                return await question()
        except Stopped:
            approvals.stop()
            # The answer is none if that waits elsewhere.
            await asyncio.sleep(_STOP_SECONDS)
            return None

    async def ask(prompt: str, options: list[str], timeout: float | None) -> str | None:
        from amplifier_app.chat.ask import ask_on_terminal

        return await on_terminal(
            lambda: ask_on_terminal(terminal, prompt, options, timeout, is_plain=is_plain)
        )

    async def ask_about_tool(
        about: ToolApproval, agent: str, timeout: float | None
    ) -> ToolApprovalAnswer | None:
        from amplifier_app.chat import approval_card

        return await on_terminal(
            lambda: approval_card.ask_about_tool(
                *(terminal, about, agent, timeout),
                is_plain=is_plain,
                names=renderer.approval_keys,
                count_waiting=lambda: approvals.asking - 1,
            )
        )

    async def ask_for_text(prompt: str, timeout: float | None) -> str | None:
        from amplifier_app.chat.ask import ask_for_text_on_terminal

        return await on_terminal(
            lambda: ask_for_text_on_terminal(terminal, prompt, timeout, is_plain=is_plain)
        )

    approvals = Approvals(request.approve or "ask", ask, ask_about_tool, ask_for_text)
    return approvals
