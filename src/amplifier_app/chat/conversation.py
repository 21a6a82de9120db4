"""The chat loop: take a prompt, complete what is typed, run the turn, repeat until the user leaves."""

from __future__ import annotations

import asyncio
import os
import re
import signal
import time
from collections.abc import (
    AsyncGenerator,
    Callable,
    Coroutine,
    Generator,
    Iterable,
    Mapping,
    Sequence,
)
from contextlib import contextmanager, suppress
from enum import Enum
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from prompt_toolkit.completion import CompleteEvent, Completer, Completion
from prompt_toolkit.document import Document
from rich.console import Group, RenderableType
from rich.text import Text

from amplifier_app.base.errors import AppError, SessionError, Terminated
from amplifier_app.base.outcome import OK, Ending, Outcome, to_outcome
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.signals import Interrupts
from amplifier_app.base.stdio import Output
from amplifier_app.chat.picker import Picker, pick
from amplifier_app.chat.project_files import PromptFiles, matching, project_files, to_mention
from amplifier_app.chat.slash.contributed import contributed_commands
from amplifier_app.chat.slash.registry import (
    Chat,
    Leave,
    Reopen,
    SlashCommand,
    ToBackground,
    all_commands,
    command_in,
    find,
    is_command,
    is_shell_line,
    run_command,
)
from amplifier_app.chat.terminal import ChatTerminal, Sent, State
from amplifier_app.plan.schema.grammar import STATUS_FIELDS
from amplifier_app.render.ansi import paint
from amplifier_app.render.conversation import ConversationView
from amplifier_app.render.status_line import StatusCommand, status_line
from amplifier_app.runtime import describe
from amplifier_app.runtime.approvals import ADD_MODULE, NO_MODES
from amplifier_app.runtime.checks import run_shell
from amplifier_app.runtime.continuation import (
    build_conversation,
    last_prompt,
    prompt_to_continue,
)
from amplifier_app.runtime.export.parts import build_parts, last_prompts
from amplifier_app.runtime.observers.observer import FIRST, LAST, Level, Renderer
from amplifier_app.runtime.status import read_status
from amplifier_app.runtime.turn_outcome import outcome_of_turn
from amplifier_app.sessions.backups import files_changed_since
from amplifier_app.sessions.conversation import CONTINUE
from amplifier_app.sessions.conversation import Conversation as Recorded
from amplifier_app.sessions.store import SessionStore
from amplifier_core.models import HookResult
from amplifier_support.process.commands import CommandError
from amplifier_support.session_capabilities import MODE, SECRET_VARIABLES, START_BACKGROUND

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession


# -- completion in the input line: slash commands, their arguments, and files after @ ----


_FILES_SECONDS = 10.0
"""Seconds for which a list of files is used."""


class ChatCompleter(Completer):
    """Completes what is typed before the cursor.

    Args:
        chat: The chat, with its commands.
    """

    def __init__(self, chat: Chat) -> None:
        self._chat = chat
        self._files: list[str] = []
        self._listed = -_FILES_SECONDS

    async def get_completions_async(
        self, document: Document, complete_event: CompleteEvent
    ) -> AsyncGenerator[Completion]:
        if self._mention(document) is not None and time.monotonic() > self._listed + _FILES_SECONDS:
            self._files = await asyncio.to_thread(project_files, os.getcwd())
            self._listed = time.monotonic()
        for completion in self.get_completions(document, complete_event):
            yield completion

    def get_completions(
        self, document: Document, complete_event: CompleteEvent
    ) -> Iterable[Completion]:
        text = document.text_before_cursor
        if text.startswith("/") and "\n" not in text:
            name, space, argument = text.partition(" ")
            yield from self._arguments(name, argument) if space else self._commands(name)
            return
        typed = self._mention(document)
        if typed is not None:
            for name in matching(self._files, typed.removeprefix('"')):
                mention = to_mention(name)
                if mention is not None:
                    yield Completion(mention, -len(typed), name, _size(name))

    @staticmethod
    def _mention(document: Document) -> str | None:
        """Return what follows `@` in the word before the cursor."""
        word = document.get_word_before_cursor(WORD=True)
        return word[1:] if word.startswith("@") else None

    def _commands(self, typed: str) -> Iterable[Completion]:
        for command in self._chat.commands.values():
            if command.name.startswith(typed):
                meta = f"{command.usage}  {command.summary}" if command.usage else command.summary
                # A skill may have a name that leaves no place for the summaries of all.
                yield Completion(command.name, -len(typed), one_line(command.name, 30), meta)

    def _arguments(self, name: str, typed: str) -> Iterable[Completion]:
        command = find(name, self._chat.commands)
        if command is None or command.complete is None:
            return
        for value in command.complete(self._chat, typed):
            text, meta = (value, "") if isinstance(value, str) else value
            if typed.lower() in text.lower():
                yield Completion(text, start_position=-len(typed), display_meta=meta)


def _size(name: str) -> str:
    try:
        return describe.size(os.path.getsize(name))
    except OSError:
        return ""


# -- what the chat says about its session, and about a turn or a command that has ended without success


_MAX_HEADER_LINES = 12


async def resume_header(session: OpenSession, recorded: Recorded) -> Group:
    """The header of a resumed session with a conversation, and its last exchange."""
    prompts = len(recorded.prompts)
    metadata = session.saved.metadata if session.saved is not None else {}
    title = metadata.get("title")
    facts = [
        f'{_verb(metadata)} "{one_line(title, 60)}"' if isinstance(title, str) else _verb(metadata),
        describe.count(prompts, "prompt"),
        describe.age(str(metadata.get("updated"))),
        f"plan {one_line(session.facts.profile, 40)}",
    ]
    lines: list[RenderableType] = [Text(" · ".join(filter(None, facts)), style="bold")]
    project = metadata.get("project")
    if session.saved is not None and isinstance(project, str):
        changed = await asyncio.to_thread(files_changed_since, session.saved.path, project)
        if changed:
            lines.append(Text.from_ansi(paint(describe.changed_since(changed), "yellow")))
    parts = build_parts(last_prompts(recorded, 1), session.renderer.visibility)
    exchange = [part for part in parts if part.kind in ("prompt", "answer")]
    answers = [part for part in exchange if part.kind == "answer"]
    last = [*exchange[:1], *answers[-1:]] if prompts else answers[-1:]
    lines.append(ConversationView(last, style="dim", max_lines=_MAX_HEADER_LINES))
    if prompts > 1:
        earlier = describe.count(prompts - 1, "earlier prompt")
        lines.append(Text(f"{earlier}: /history", style="dim"))
    return Group(*lines, Text())


def _verb(metadata: Mapping[str, Any]) -> str:
    """`Forked` for a fork that nothing was sent to yet."""
    return "Forked" if "forked_from" in metadata and "usage" not in metadata else "Resumed"


_NEXT_KEYS = {
    Ending.AUTHENTICATION: " · /provider",
    Ending.UNAVAILABLE: " · /model · /provider",
    Ending.PROVIDER: " · /model · /provider",
}
"""Failure of a turn → advice besides trying again."""


RETRY = "/retry"
"""The command that sends a prompt again."""


def show_outcome(renderer: Renderer, outcome: Outcome, level: Level) -> None:
    """Show what happened, with its hint."""
    hint = f"\n  {outcome.hint}" if outcome.hint else ""
    renderer.notice(f"{outcome.message}{hint}", level, "chat")


def _show_failure(renderer: Renderer, outcome: Outcome, key: str, *, has_history: bool) -> None:
    """Show why a turn failed, and what the user can do next.

    Apart from commands, only keys that type nothing are offered: a letter would be taken from the
    next prompt.

    Args:
        renderer: Shows it.
        outcome: How the turn ended.
        key: What sends the prompt again.
        has_history: Whether Up recalls the prompt.
    """
    edit = " · Up edits it" if has_history else ""
    following = f"{key} tries again{edit}{_NEXT_KEYS.get(outcome.ending, '')}"
    # Hints of the command line name options; here commands do the same.
    with_options = outcome.ending in (Ending.UNAVAILABLE, Ending.PROVIDER)
    hints = [outcome.hint] if outcome.hint and not with_options else []
    if outcome.retry_after is not None and outcome.retry_after >= 1:
        hints.append(f"Retry in {describe.duration(outcome.retry_after)} (provider's request).")
    hint = "\n  ".join([*hints, "Your prompt is kept.", following])
    show_outcome(renderer, outcome._replace(hint=hint), "error")


def _show_ending(session: OpenSession, renderer: Renderer, key: str) -> str | None:
    """Show how a turn without an error ended, if not well, and what `key` sends; return that."""
    turn = session.turn
    if turn.status == "cancelled":
        begun = bool(turn.response or turn.tools)
        stopped = "stopped" if begun else "stopped before an answer"
        following = "continues" if begun else "sends the prompt again"
        renderer.notice(f"{stopped}; {key} {following}", "warning", "chat")
        return CONTINUE if begun else RETRY
    # The hint on resuming helps only at a limit, which a new run can raise.
    limited = turn.limit is not None and session.is_saved
    # The line of a denied call says so, but not which rule is missing.
    unapproved = tuple(call for call in turn.denied if call.by_default)
    ended = turn._replace(denied=unapproved)
    outcome = outcome_of_turn(ended, None, session.id if limited else None)
    if outcome.ending is Ending.OK:
        return None
    continues = turn.status == "incomplete" and turn.limit is None and turn.reason != "denied"
    if continues:
        outcome = outcome._replace(hint=f"{key} continues")
    show_outcome(renderer, outcome, "warning")
    return CONTINUE if continues else None


# -- the chat loop: take a prompt, run the turn, repeat until the user leaves ------------


async def begin(chat: Conversation, prompt: str | None, *, greets: bool) -> None:
    """Show what the session continues, and send a prompt or offer to finish the last one.

    Args:
        chat: The chat.
        prompt: The first prompt; None to wait for it.
        greets: Whether to show what the session continues, and how to get help.

    Raises:
        SessionError: The transcript of the session cannot be read.
    """
    session, renderer = chat.session, chat.renderer
    recorded = await build_conversation(session) if session.facts.resumed else None
    if greets:
        if recorded is not None:
            renderer.reply(await resume_header(session, recorded))
        renderer.notice("/help for commands, Ctrl-D to leave", "info", "chat")
    if prompt is not None:
        chat.send(prompt)
        return
    last = await last_prompt(session, recorded) if recorded is not None else None
    if last is None:
        return
    chat.last_prompt = last.text
    chat.files.keep(last.text)
    if not last.finished:
        chat.on_empty_line, key = RETRY, chat.retry_key()
        state, how = (
            ("unfinished", "continues it") if last.begun else ("unanswered", "sends it again")
        )
        renderer.notice(f"the last prompt is {state}; {key} {how}", "info", "chat")


_MAX_WAITING = 3
"""Messages shown; the rest is counted."""


_MAX_OUTPUT = 40
"""Lines shown of the output of a shell command."""

_MAX_OUTPUT_BYTES = 100_000
"""The end of its output that is offered for the prompt."""


_IN_BACKGROUND = re.compile(r"(?<![&\\])\s*&\s*\Z")


async def _start_in_background(command: str, coordinator: Any, renderer: Renderer) -> None:
    """Start a shell command of the user that `/bashes` lists."""
    start = START_BACKGROUND.of(coordinator)
    if start is None:
        text = "no module of this session runs background commands; tool-bash does"
        renderer.notice(text, "error", "chat")
        return
    try:
        renderer.reply(await start(command))
    # A module may raise anything; the chat continues.
    except Exception as error:
        text = f"cannot start the command: {one_line(str(error), 400)}"
        renderer.notice(text, "error", "chat")


async def _run_shell_line(
    text: str, session: OpenSession, renderer: Renderer, terminal: ChatTerminal
) -> str | None:
    """Run a shell command, and return what becomes part of the input line; None if it cannot run."""
    command = text[1:].strip()
    if not command:
        renderer.notice("! expects a shell command", "error", "chat")
        return None
    coordinator = session.session.coordinator
    if _IN_BACKGROUND.search(command):
        await _start_in_background(_IN_BACKGROUND.sub("", command), coordinator, renderer)
        return None
    try:
        result = await run_shell(command, coordinator, most_bytes=_MAX_OUTPUT_BYTES)
    except CommandError as error:
        renderer.notice(f"cannot run the command: {error}", "error", "chat")
        return None
    output = result.output.rstrip("\n")
    lines = output.splitlines()
    more = len(lines) - _MAX_OUTPUT
    cut = [f"… {describe.count(more, 'earlier line')}", *lines[-_MAX_OUTPUT:]]
    if lines:
        renderer.reply("\n".join(cut if more > 0 else lines))
    if result.exit_code:
        renderer.notice(f"exit code {result.exit_code}", "warning", "chat")
    folded = f"$ {command}\n{output}\n[exit code {result.exit_code}]\n"
    label = f"output of `{one_line(command, 30)}`, {describe.count(len(lines), 'line')}"
    terminal.insert_folded(folded, label)
    return folded


T = TypeVar("T")
R = TypeVar("R")


async def chat(
    session: OpenSession,
    renderer: Renderer,
    terminal: ChatTerminal,
    stdout: Output,
    *,
    prompt: str | None = None,
    greets: bool = True,
    find_obstacle: Callable[[], str | None] = lambda: None,
) -> Outcome:
    """Run the chat until the user leaves. A failed turn is reported and the chat continues.

    Args:
        session: The session.
        renderer: Shows it.
        terminal: Where the user types.
        stdout: Receives the line that says how to resume.
        prompt: The first prompt; None to wait for it.
        greets: Whether to show what the session continues, and how to get help.
        find_obstacle: Returns why a prompt cannot go on in the background; None if it can.

    Raises:
        Reopen: The chat continues with another session.
        ToBackground: The running prompt goes on without the chat.
        Terminated: SIGTERM or SIGHUP arrived.
        SessionError: The session can no longer be saved.
    """
    commands = all_commands()
    commands |= await contributed_commands(session, commands, renderer)
    conversation = Conversation(session, renderer, terminal, commands)
    conversation.find_obstacle = find_obstacle
    await begin(conversation, prompt, greets=greets)
    is_over = True
    try:
        with conversation.receive_input():
            while stdout.failure is None and await conversation.step():
                pass
    except Leave:
        pass
    except (Reopen, ToBackground):
        is_over = False
        raise
    finally:
        if is_over and session.is_saved:
            renderer.close()
            with terminal.suspended():
                id = SessionStore().shortest_id(session.id)
                stdout.write(f"Resume with: amplifier run --resume {id}\n")
    return OK


class _Background(Enum):
    """The progress of a turn towards a process of its own."""

    NO = "no"
    REQUESTED = "requested"
    LEFT = "left"


class Conversation:
    """The chat as slash commands (`Chat`) and the keyboard (`Listener`) see it.

    Attributes:
        session: The session.
        renderer: Shows it.
        terminal: Where the user types.
        commands: The slash commands by name.
        is_plain: Whether the terminal itself edits the input line.
        edit_text: Edits text in the user's editor; see `ChatTerminal.edit_text`.
        last_prompt: The prompt sent last.
        on_empty_line: What Enter on an empty line sends, if anything.
        files: Adds files to prompts.
        find_obstacle: Returns why a prompt cannot go on in the background; None if it can.
    """

    def __init__(
        self,
        session: OpenSession,
        renderer: Renderer,
        terminal: ChatTerminal,
        commands: dict[str, SlashCommand],
    ) -> None:
        self.session = session
        self.renderer = renderer
        self.terminal = terminal
        self.commands = commands
        self.is_plain = terminal.echoes
        self.edit_text = terminal.edit_text
        self.last_prompt: str | None = None
        self._inputs: asyncio.Queue[Sent | None] = asyncio.Queue()
        self._upcoming: list[str] = []  # to run after the turn, in order
        self.files = PromptFiles(renderer)
        self._turn_runs = False
        self._may_request_title = False
        self.find_obstacle: Callable[[], str | None] = lambda: None
        self._background = _Background.NO
        self.on_empty_line: str | None = None
        self._command: asyncio.Task[None] | None = None
        # Commands during the turn, changes of the mode.
        self._concurrent: set[asyncio.Task[Any]] = set()
        chosen: Any = session.plan.display.get("status")
        if isinstance(chosen, dict):
            secrets = tuple(SECRET_VARIABLES.of(session.session.coordinator) or ())
            command = StatusCommand(chosen["command"], secrets, self._in_background)
            self._status_line = command.line
        else:
            fields = STATUS_FIELDS[:7] if chosen is None else chosen
            self._status_line = partial(status_line, names=fields)
        # After the hooks that may change the text.
        hooks = session.session.coordinator.hooks
        hooks.register("steer:injected", lambda *_: terminal.refresh(), LAST, name="app-chat")
        # Queued messages become part of the conversation before a request.
        hooks.register("provider:request", self._show_arrived, FIRST, name="app-chat")
        hooks.register(
            "provider:request", self._end_for_background, FIRST, name="app-chat-background"
        )

    @contextmanager
    def receive_input(self) -> Generator[None]:
        """Receive what the user does for the duration."""
        terminal = self.terminal
        terminal.waiting = self._waiting
        terminal.status = lambda width: self._status_line(read_status(self.session), width)
        terminal.completer = ChatCompleter(self)
        loop = asyncio.get_running_loop()
        before = signal.signal(
            signal.SIGINT, lambda *_: loop.call_soon_threadsafe(terminal.interrupt)
        )
        terminal.listener = self
        try:
            yield
        finally:
            terminal.listener = None
            signal.signal(signal.SIGINT, before)

    # Chat

    def send(self, prompt: str, *, adds_files: bool = True) -> None:
        """Send a prompt as soon as no turn runs."""
        if not adds_files:
            self.files.ignore_mentions_in(prompt)
        self._upcoming.append(prompt)

    def page_or_return(self, text: str) -> str | None:
        """Show text in the pager if it is long and no turn runs; otherwise return it."""
        if self._turn_runs or not self.terminal.page(for_terminal(text)):
            return text
        return None

    async def pick(self, picker: Picker[T, R]) -> R | None:
        """Let the user choose from a list; None if they leave it."""
        with self.terminal.suspended(), suppress(KeyboardInterrupt):
            return await pick(picker)
        return None

    # Listener

    def on_input(self, sent: Sent) -> None:
        """Take an input: the next prompt, or a message to the running turn."""
        self.renderer.line_entered()
        if not self._turn_runs:
            self._inputs.put_nowait(sent)
        elif sent.text.strip():
            self._take(sent.text)

    def on_interrupt(self) -> None:
        """Stop what runs: the turn, or else the command."""
        if self._turn_runs:
            self._background = _Background.NO
            self.session.stop(immediate=self.session.stopping.is_requested)
        elif self._command is not None:
            self._command.cancel()

    def on_background(self) -> None:
        """Let the running prompt go on without the chat, from its next model request."""
        obstacle = "no prompt runs" if not self._turn_runs else self.find_obstacle()
        if obstacle is None and not self.session.is_saved:
            obstacle = "the session is not saved"
        if obstacle is not None:
            self.renderer.notice(f"nothing goes to the background: {obstacle}", "info", "chat")
        elif self._background is _Background.NO:
            self._background = _Background.REQUESTED
            text = "going to the background at the next model request; Ctrl-C stops the prompt"
            self.renderer.notice(text, "info", "chat")

    def on_leave(self) -> None:
        """Leave as soon as no turn runs."""
        if self._turn_runs:
            self._take("/quit")
        else:
            self._inputs.put_nowait(None)

    def cycle_mode(self) -> None:
        """Switch to the next approval mode."""
        control = MODE.of(self.session.session.coordinator)
        if control is None:
            self.renderer.notice(f"{NO_MODES}. {ADD_MODULE}", "info", "chat")
            return
        self._in_background(control.cycle())

    # The loop

    async def step(self) -> bool:
        """Take one input and do what it says; False if the user left.

        Raises:
            Leave: A command ends the chat.
        """
        is_recalled = False
        if self._upcoming:
            text = self._upcoming.pop(0)
            if self._returned(text):
                return True
            self.renderer.message_sent(self._as_shown(text))
        else:
            self.terminal.set_state(State.IDLE)
            sent = await self._next_input()
            if sent is None:
                return False
            text, is_recalled = sent.text, sent.is_recalled
            if not text.strip():
                if self.on_empty_line is None:
                    return True
                text = self.on_empty_line
            if self._returned(text):
                return True
            # The command shows what it sends.
            is_shown = text != RETRY if not sent.text.strip() else not self.terminal.echoes
            if is_shown:
                self.renderer.message_sent(self._as_shown(text))
        self.terminal.set_state(State.BUSY)
        if is_shell_line(text):
            await self._interruptible(self._shell(text))
        elif command_in(text):
            await self._interruptible(self.command(text))
        else:
            if is_recalled and self.is_unanswered and self.last_prompt is not None:
                # The edited prompt replaces the one that was not answered.
                await prompt_to_continue(self.session, self.last_prompt)
            await self._turn(self.files.add_to(text))
        return True

    async def _next_input(self) -> Sent | None:
        """Return the next input; until it comes after an answer, the model may write the session's title."""
        if not self._may_request_title or not self.session.turn.response:
            return await self._inputs.get()
        self._may_request_title = False
        request = asyncio.create_task(self.session.request_title())
        try:
            return await self._inputs.get()
        finally:
            request.cancel()
            await asyncio.wait({request})

    def _returned(self, text: str) -> bool:
        """Return a prompt to the input line if it mentions files that cannot be added."""
        if is_shell_line(text) or is_command(text) or not self.files.is_refused(text):
            return False
        self.terminal.draft = "\n".join(filter(None, (text, self.terminal.draft)))
        return True

    @property
    def is_unanswered(self) -> bool:
        """True if the last prompt ended with an error, or was stopped before an answer."""
        return self.on_empty_line == RETRY

    async def _shell(self, text: str) -> None:
        output = await _run_shell_line(text, self.session, self.renderer, self.terminal)
        self.files.ignore_mentions_in(output)

    async def command(self, text: str) -> None:
        """Run a slash command and show what it returns.

        Raises:
            Leave: The command ends the chat.
        """
        try:
            reply = await run_command(text, self)
        except SessionError:
            raise
        except AppError as error:
            show_outcome(self.renderer, to_outcome(error), "error")
        else:
            if reply is not None:
                self.renderer.reply(reply)

    async def _interruptible(self, command: Coroutine[Any, Any, None]) -> None:
        self._command = asyncio.create_task(command)
        try:
            await self._command
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if task is None or task.cancelling():
                raise
            self.renderer.notice("stopped", "warning", "chat")
        finally:
            self._command = None

    async def _turn(self, prompt: str) -> None:
        """Send a prompt; lines typed while it runs go to the same turn."""
        following = await self.session.steering.begin(prompt)
        succeeded = False
        self.last_prompt = prompt
        self._turn_runs, self._may_request_title, self.on_empty_line = True, True, None
        for text in following:
            self._take(text)
        # Lines typed before the turn has begun are messages to it, too.
        while not self._inputs.empty():
            sent = self._inputs.get_nowait()
            self.on_leave() if sent is None else self.on_input(sent)
        try:
            succeeded = await self._run(prompt)
        finally:
            self._turn_runs = False
            await self._show_arrived()
            if self._background is not _Background.LEFT:
                self._plan_next(succeeded)
            self.terminal.refresh()
        background, self._background = self._background, _Background.NO
        if background is _Background.LEFT:
            raise ToBackground(await self._prompt_for_background())
        if background is _Background.REQUESTED:
            self.renderer.notice("the prompt has ended in the chat", "info", "chat")

    async def _prompt_for_background(self) -> str:
        """The messages that the turn has not used, with their files, or else the prompt that continues it."""
        waiting = [*self.session.steering.take_back(), *self._upcoming]
        if self.terminal.draft.strip():
            self.renderer.notice(f"not sent: {self.terminal.draft}", "warning", "chat")
        texts = [self.files.add_to(text) for text in waiting if not is_command(text)]
        try:
            for text in texts:
                self.session.attach(self.files.take_images(text))
        except AppError as error:
            show_outcome(self.renderer, to_outcome(error), "error")
        await self.session.add_images()
        return "\n\n".join(texts) or CONTINUE

    async def _end_for_background(self, event: str, data: dict[str, Any]) -> HookResult:
        if self._background is _Background.NO:
            return HookResult()
        self._background = _Background.LEFT
        return HookResult(action="deny", reason="the prompt goes on in the background")

    async def _run(self, prompt: str) -> bool:
        """Run a turn; return whether it succeeded."""

        def stop(_: bool) -> None:
            # Ctrl-C may only end a search; the other signals wait for no tool and no answer.
            if interrupts.terminated:
                self.session.stop(immediate=True)
            else:
                self.terminal.interrupt()

        with Interrupts(stop) as interrupts:
            try:
                self.session.attach(self.files.take_images(prompt))
                await self.session.run(prompt)
            except SessionError:
                raise
            # Providers and modules may raise anything; the chat continues.
            except Exception as error:
                outcome, has_history = to_outcome(error), not self.is_plain
                _show_failure(self.renderer, outcome, self.retry_key(), has_history=has_history)
                self.on_empty_line = RETRY
        if interrupts.terminated:
            raise Terminated
        if self.on_empty_line is None and self._background is not _Background.LEFT:
            self.on_empty_line = _show_ending(self.session, self.renderer, self.retry_key())
        return self.on_empty_line is None and self.session.turn.status == "success"

    def retry_key(self) -> str:
        """Return what sends a prompt again; Enter on an empty plain line sends a draft instead."""
        waiting = [*self.session.steering.waiting(), *self._upcoming]
        drafts = [self.terminal.draft, *(text for text in waiting if not is_command(text))]
        return RETRY if self.is_plain and any(drafts) else "Enter on an empty line"

    def _take(self, text: str) -> None:
        """Take a line typed during the turn: steer the turn, or run it afterwards."""
        steering = self.session.steering
        command = find(command_in(text) or "", self.commands)
        if is_shell_line(text) or (command is not None and command.during_turn):
            self._run_concurrently(text)
        elif self._returned(text):
            pass
        elif (
            self._upcoming
            or is_command(text)
            or self.files.has_images(text)
            or not steering.send(text := self.files.add_to(text))
        ):
            self._upcoming.append(text)
        self.terminal.refresh()

    async def _show_arrived(self, *event: Any) -> None:
        """Show the messages that the turn has used, for orchestrators that do not report it."""
        for text in await self.session.steering.take_arrived():
            self.renderer.message_sent(self._as_shown(text))
        self.terminal.refresh()

    def _run_concurrently(self, text: str) -> None:
        if not self.terminal.echoes:
            self.renderer.message_sent(text)
        self._in_background(self._shell(text) if is_shell_line(text) else self.command(text))

    def _in_background(self, work: Coroutine[Any, Any, Any]) -> None:
        task = asyncio.create_task(work)
        self._concurrent.add(task)
        task.add_done_callback(self._background_ended)

    def _background_ended(self, task: asyncio.Task[Any]) -> None:
        self._concurrent.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None:
            show_outcome(self.renderer, to_outcome(error), "error")
        self.terminal.refresh()

    def _plan_next(self, succeeded: bool) -> None:
        """Run unused messages next; after a failed or stopped turn, return them to the input line."""
        waiting = [*self.session.steering.take_back(), *self._upcoming]
        if not succeeded:
            texts = [self.files.as_typed(text) for text in waiting if not is_command(text)]
            if texts:
                self.terminal.draft = "\n".join(filter(None, (*texts, self.terminal.draft)))
            waiting = [text for text in waiting if is_command(text)]
        self._upcoming = waiting

    # What is shown

    def _as_shown(self, text: str) -> str:
        return self.terminal.shown(self.files.as_typed(text))

    def _waiting(self) -> Sequence[str]:
        """Return a line for each message that was sent and has not been used; many are counted."""
        messages = [("queued for the next step", text) for text in self.session.steering.waiting()]
        messages += [("will run when it finishes", text) for text in self._upcoming]
        lines = [f"  {what}: {one_line(self._as_shown(text))}" for what, text in messages]
        more = len(lines) - _MAX_WAITING
        return [*lines[:_MAX_WAITING], f"  … {more} more"] if more > 0 else lines
