"""Plain text on a terminal: for `--plain`, dumb terminals and screen readers."""

from __future__ import annotations

import contextlib
import io
import shutil
from collections.abc import Callable, Generator
from typing import Any

from amplifier_app.base.sanitize import StreamSanitizer, for_terminal, in_line
from amplifier_app.base.stdio import Output
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime import describe
from amplifier_app.runtime.observer import Level, Typed
from amplifier_app.runtime.turn import EventHandler, TurnResult, peek


class PlainRenderer(StderrNotices):
    """Streams everything as lines of plain text, without a live region.

    User input during a turn has its own line; other output waits until that line is sent.
    """

    def __init__(self, output: Output, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet)
        self._output = output
        self._last_character = "\n"
        self._held: list[Callable[[], object]] | None = None
        self._echoed = ""
        self._waiting = 0
        self._begin_message()

    def handlers(self) -> dict[str, EventHandler]:
        handlers = {
            **super().handlers(),
            "provider:request": self._on_request,
            "content_block:delta": self._on_delta,
            "content_block:end": self._on_block_end,
            "steer:injected": self._on_steering,
        }
        if not self._quiet:
            handlers["tool:post"] = handlers["tool:error"] = self._on_tool_end
        return handlers

    def turn_started(self) -> None:
        self._begin_message()

    def turn_ended(self, result: TurnResult) -> None:
        self._release()
        self._write(self._sanitizer.flush())
        if not self._shown and result.has_answer:
            self._write(for_terminal(result.response))
        self._end_line()

    def notice(self, message: str, level: Level, source: str) -> None:
        line = self._echoed
        self._release()
        self._end_line()
        super().notice(message, level, source)
        if line:
            self._open(line)

    def reply(self, content: Any) -> None:
        from rich.console import Console

        file = io.StringIO()
        width = shutil.get_terminal_size().columns
        console = Console(
            file=file, width=width, color_system=None, markup=False, emoji=False, highlight=False
        )
        console.print(for_terminal(content) if isinstance(content, str) else content)
        self._end_line()
        self._write("\n".join(line.rstrip() for line in file.getvalue().splitlines()) + "\n")

    def typed(self, typed: Typed) -> None:
        line = in_line(typed.line)
        sent = typed.waiting[self._waiting :]
        self._waiting = len(typed.waiting)
        if sent and not line:
            state, text = sent[-1]
            if self._held is None:
                self._open(in_line(text))
            self._output.write(f"  [{state}]")
        elif line and self._held is None:
            self._open(line)
        elif self._held is not None:
            self._echo(line)
        if not line:
            self._release()

    def message_sent(self, text: str) -> None:
        self._end_line()
        self._write(f"> {for_terminal(text)}\n")

    @contextlib.contextmanager
    def paused(self) -> Generator[None]:
        self._release()
        with super().paused():
            yield

    def _open(self, line: str) -> None:
        self._end_line()
        self._output.write("> ")
        self._held = []
        self._echo(line)

    def _echo(self, line: str) -> None:
        from prompt_toolkit.utils import get_cwidth

        same = next(
            (
                n
                for n, pair in enumerate(zip(self._echoed, line, strict=False))
                if len(set(pair)) > 1
            ),
            min(len(self._echoed), len(line)),
        )
        width = get_cwidth(self._echoed[same:])
        self._output.write("\b" * width + " " * width + "\b" * width + line[same:])
        self._echoed = line

    def _release(self) -> None:
        if self._held is None:
            return
        held, self._held, self._echoed = self._held, None, ""
        self._write("\n")
        for show in held:
            show()

    def _on_steering(self, event: str, data: dict[str, Any]) -> None:
        self.message_sent(str(peek(data, "text") or ""))

    def _begin_message(self) -> None:
        self._sanitizer = StreamSanitizer(terminal=True)
        self._streamed: set[Any] = set()
        self._shown = False

    def _on_request(self, event: str, data: dict[str, Any]) -> None:
        self._end_line()
        self._begin_message()

    def _on_delta(self, event: str, data: dict[str, Any]) -> None:
        delta = peek(data, "delta")
        if isinstance(delta, str) and self._wanted(data):
            self._streamed.add(peek(data, "block_index"))
            self._show(data, self._sanitizer.feed(delta))

    def _on_block_end(self, event: str, data: dict[str, Any]) -> None:
        if not self._wanted(data):
            return
        self._show(data, self._sanitizer.flush())
        if peek(data, "block_index") not in self._streamed:
            self._show(data, for_terminal(describe.block_text(data)))
        self._end_line()

    def _on_tool_end(self, event: str, data: dict[str, Any]) -> None:
        self._end_line()
        failed = f": {describe.error_text(data)}" if event == "tool:error" else ""
        about = f"{describe.tool_name(data)} {describe.tool_input(data)}".strip()
        self._write(f"[{about}{failed}]\n")

    def _wanted(self, data: dict[str, Any]) -> bool:
        kind = peek(data, "block_type")
        return kind == "text" or (kind == "thinking" and not self._quiet)

    def _show(self, data: dict[str, Any], text: str) -> None:
        if text and peek(data, "block_type") == "text":
            self._shown = True
        self._write(text)

    def _write(self, text: str) -> None:
        if self._held is not None:
            self._held.append(lambda: self._write(text))
        elif text:
            self._last_character = text[-1]
            if not self._output.write(text):
                self.on_failure()

    def _end_line(self) -> None:
        if self._held is not None:
            self._held.append(self._end_line)
        elif self._last_character != "\n":
            self._write("\n")


class AnswerRenderer(PlainRenderer):
    """Shows only the answer, at the end of the turn, for plans whose modules draw on the terminal.

    User input during a turn, warnings and errors are shown as usual.
    """

    def handlers(self) -> dict[str, EventHandler]:
        return {**StderrNotices.handlers(self), "steer:injected": self._on_steering}
