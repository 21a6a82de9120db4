"""Typing while a turn runs, on a real pseudo-terminal."""

import re
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.render.screen import ERASE_DOWN
from amplifier_app.sessions.store import SessionStore
from tests.e2e.test_chat_pty import ASKING_HOOK, leave, prompts
from tests.support.cli import run_amplifier
from tests.support.plans import held_plan, let_go, module_folder
from tests.support.screen import Emulator
from tests.support.terminal import (
    ALT_ENTER,
    CTRL_C,
    CTRL_D,
    ENTER,
    OUTPUT_MARK,
    PASTE,
    UP,
    Terminal,
)

BACKSPACE, CTRL_B, CTRL_U, CTRL_W, LEFT, END = "\x7f", "\x02", "\x15", "\x17", "\x1b[D", "\x1b[F"

LISTING = {"name": "list_directory", "input": {"path": "."}}
FILES: dict[str, Any] = {"tools": [{"module": "tool-filesystem"}]}

plain = pytest.mark.parametrize("plain", [False, True], ids=["live", "plain"])


def chat(
    tmp_path: Path,
    replies: list[Any],
    *,
    plain: bool = False,
    held: tuple[int, ...] = (0,),
    cold: bool = False,
    **more: Any,
) -> Terminal:
    """A chat whose first answer, or those of `held`, come when the test lets them go."""
    plan = held_plan(tmp_path, replies, held, **more)
    return Terminal("run", "-f", plan, *(["--plain"] if plain else []), cwd=tmp_path, cold=cold)


def roles(session_id: str) -> list[str]:
    return [message["role"] for message in SessionStore().read(session_id)[1]]


def waits(state: str, text: str) -> str:
    """A pattern for a waiting line, live or plain."""
    return rf"{state}: {text}|\[{state}\]"


def begin(terminal: Terminal, prompt: str = "go") -> None:
    """Send the prompt and wait until its turn runs."""
    terminal.prompt()
    terminal.enter(prompt, rf"{OUTPUT_MARK}|{prompt}\r?\n(?!.*›)")


@plain
def test_a_line_typed_during_a_turn_is_sent_after_the_step(tmp_path: Path, plain: bool) -> None:
    replies = [{"tool_calls": [LISTING]}, "all done"]
    with chat(tmp_path, replies, plain=plain, **FILES) as terminal:
        begin(terminal)
        terminal.type("be brief")
        terminal.until("be brief")
        terminal.type(ENTER)
        terminal.until(waits("queued for the next step", "be brief"))
        let_go(tmp_path)
        terminal.until("list_directory")
        terminal.until("[›>] be brief")
        terminal.until("all done")
        terminal.prompt()
        session_id = leave(terminal)
    assert prompts(session_id) == ["go", "be brief"]
    assert roles(session_id) == ["user", "assistant", "tool", "user", "assistant"]


def test_lines_typed_during_the_answer_are_answered_in_the_same_turn(tmp_path: Path) -> None:
    with chat(tmp_path, ["first", "second"]) as terminal:
        begin(terminal)
        terminal.type("and this" + ENTER + "and that" + ENTER)
        terminal.until(waits("queued for the next step", "and this"))
        terminal.until(waits("queued for the next step", "and that"))
        let_go(tmp_path)
        terminal.until("first")
        terminal.until("[›>] and this")
        terminal.until("second")
        terminal.prompt()
        session_id = leave(terminal)
    assert prompts(session_id) == ["go", "and this", "and that"]
    assert roles(session_id) == ["user", "assistant", "user", "user", "assistant"]
    assert SessionStore().read(session_id)[0]["prompts"] == 1


def test_the_line_can_be_edited_and_have_several_lines(tmp_path: Path) -> None:
    with chat(tmp_path, ["first", "second", "third", "fourth"], held=(0, 2)) as terminal:
        begin(terminal)
        terminal.type("nonsense" + CTRL_U + "ue" + LEFT + "xy" + BACKSPACE * 2 + "s")
        terminal.type(" word" + CTRL_W + BACKSPACE + END)
        terminal.type(ALT_ENTER + PASTE.format("ñ\ntail") + ENTER)
        terminal.until(waits("queued for the next step", "use"))
        let_go(tmp_path)
        terminal.until("second")
        begin(terminal, "on")
        # Control characters are not shown.
        terminal.type(PASTE.format("a\x1b]0;title\x07b\u202ec") + ENTER)
        terminal.until(waits("queued for the next step", "a"))
        let_go(tmp_path, 2)
        terminal.until("fourth")
        terminal.prompt()
        assert prompts(leave(terminal))[:3] == ["go", "use\nñ\ntail", "on"]
    assert "\x1b]" not in terminal.unmarked
    assert "\u202e" not in terminal.raw


@plain
def test_unsent_text_stays_in_the_line(tmp_path: Path, plain: bool) -> None:
    with chat(tmp_path, ["first", "second"], plain=plain) as terminal:
        begin(terminal)
        terminal.type("half a thou")
        terminal.until("half a thou")
        let_go(tmp_path)
        terminal.until("first")
        terminal.prompt()
        terminal.ask("ght", "second")
        assert prompts(leave(terminal)) == ["go", "half a thought"]


@plain
def test_ctrl_c_returns_queued_lines(tmp_path: Path, plain: bool) -> None:
    # The first request is stopped before it is answered.
    with chat(tmp_path, ["second"], plain=plain) as terminal:
        begin(terminal)
        terminal.enter("rather this", waits("queued for the next step", "rather this"))
        terminal.type("and th")
        terminal.until("and th")
        terminal.type(CTRL_C)
        key = "/retry" if plain else "Enter on an empty line"
        terminal.until(f"stopped before an answer; {key} sends")
        if plain:  # the terminal itself discards its line
            terminal.until("Not sent .*rather this")
            terminal.prompt()
            terminal.ask("!echo out", "exit code 0")
            terminal.type(ENTER)
            sent = "rather this\n$ echo out\nout\n[exit code 0]\n"
        else:
            terminal.prompt()
            terminal.until("› rather this")
            terminal.until("and th")
            terminal.type("at" + ENTER)
            sent = "rather this\nand that"
        terminal.until("second")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["go", sent]


def test_a_stopped_prompt_is_sent_again_with_the_messages_to_it(tmp_path: Path) -> None:
    with chat(tmp_path, ["fine"], held=(0, 1)) as terminal:
        terminal.prompt()
        terminal.enter("go" + ENTER + "and this", "› and this")
        terminal.type(CTRL_C)
        terminal.until("stopped before an answer; Enter on an empty line sends the prompt again")
        terminal.prompt()
        terminal.type(ENTER)
        terminal.until("› go.*› and this")
        terminal.type(CTRL_C)
        terminal.prompt()
        terminal.ask(f"{UP}{UP}{BACKSPACE}{BACKSPACE}do", "› and this.*fine")
        assert prompts(leave(terminal)) == ["do", "and this"]
    assert "/retry" not in terminal.shown


def test_files_are_added_once_to_what_is_sent_again(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("see @a.txt\n")
    file = '\n\n<file path="a.txt">\nsee @a.txt\n</file>'
    with chat(tmp_path, ["one", "two"]) as terminal:
        terminal.prompt()
        terminal.enter("what is @a.txt ?", "added a.txt")
        terminal.enter("and @a.txt ?", waits("queued for the next step", "and @a.txt"))
        terminal.type(CTRL_C)
        terminal.until("Enter on an empty line sends the prompt again")
        terminal.prompt()
        terminal.until("› and @a.txt")
        terminal.type(CTRL_U + ENTER)
        let_go(tmp_path)
        terminal.until("one")
        terminal.prompt()
        terminal.ask("last @a.txt", "two")
        sent = [f"what is @a.txt ?{file}", f"last @a.txt{file}"]
        assert prompts(leave(terminal)) == sent
    assert "<file" not in terminal.shown


def test_a_turn_that_failed_after_a_message_was_answered_is_continued(tmp_path: Path) -> None:
    failing = {"error": {"type": "InvalidRequestError", "message": "no such model"}}
    replies = [{"tool_calls": [LISTING]}, failing, "fine"]
    with chat(tmp_path, replies, **FILES) as terminal:
        begin(terminal)
        terminal.enter("be brief", waits("queued for the next step", "be brief"))
        let_go(tmp_path)
        terminal.until("Enter on an empty line tries again")
        terminal.prompt()
        terminal.type(ENTER)
        terminal.until("fine")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["go", "be brief", "Continue."]


def test_a_failed_turn_returns_queued_lines(tmp_path: Path) -> None:
    failing = {"error": {"type": "InvalidRequestError", "message": "no such model"}}
    with chat(tmp_path, [failing, "fine"]) as terminal:
        begin(terminal)
        terminal.enter("hello?", waits("queued for the next step", "hello"))
        let_go(tmp_path)
        terminal.until("no such model")
        terminal.until(r"› hello\?")
        terminal.type(ENTER)
        terminal.until("fine")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["go", "hello?"]


def test_a_failed_plain_turn_is_sent_again_before_queued_lines(tmp_path: Path) -> None:
    failing = {"error": {"type": "InvalidRequestError", "message": "no such model"}}
    with chat(tmp_path, [failing, "fine"], plain=True) as terminal:
        begin(terminal)
        terminal.enter("hello?", waits("queued for the next step", "hello"))
        let_go(tmp_path)
        terminal.until("/retry tries again")
        terminal.until(r"Not sent yet.*hello\?")
        terminal.enter("/retry", "fine", r"Not sent yet.*hello\?")
        assert prompts(leave(terminal)) == ["go"]
    assert "Enter on an empty line" not in terminal.shown


def test_at_the_limit_of_a_turn_the_line_is_the_next_prompt(tmp_path: Path) -> None:
    session = {
        "orchestrator": {"module": "loop-streaming", "config": {"max_iterations": 1}},
        "context": "context-simple",
    }
    with chat(tmp_path, ["first", "second"], session=session) as terminal:
        begin(terminal)
        terminal.enter("go on", waits("queued for the next step", "go on"))
        let_go(tmp_path)
        terminal.until("first")
        terminal.until("› go on")
        terminal.until("second")
        terminal.prompt()
        session_id = leave(terminal)
    assert SessionStore().read(session_id)[0]["prompts"] == 2


def test_commands_wait_for_the_end_of_the_turn(tmp_path: Path) -> None:
    with chat(tmp_path, ["first", "second"]) as terminal:
        begin(terminal)
        terminal.type("/status" + ENTER)
        terminal.until("mock-model")  # a command that only reads does not wait
        terminal.type("/clear" + ENTER + "and then" + ENTER)
        terminal.until(waits("will run when it finishes", "/clear"))
        terminal.until(waits("will run when it finishes", "and then"))
        let_go(tmp_path)
        terminal.until("first")
        terminal.until("[›>] /clear")
        terminal.until("Context cleared")
        terminal.until("[›>] and then")
        terminal.until("second")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["and then"]


def test_ctrl_d_on_an_empty_line_leaves_after_the_turn(tmp_path: Path) -> None:
    with chat(tmp_path, ["first"]) as terminal:
        begin(terminal)
        terminal.type(CTRL_D)
        terminal.until(waits("will run when it finishes", "/quit"))
        let_go(tmp_path)
        terminal.until("first")
        terminal.until("amplifier run --resume")
        assert terminal.finish() == 0


PLAIN_LOOP = """
import asyncio
from pathlib import Path

__amplifier_module_type__ = "orchestrator"


class Loop:
    async def execute(self, prompt, context, providers, tools, hooks, **more):
        from amplifier_core.message_models import ChatRequest, Message

        await context.add_message({"role": "user", "content": prompt})
        while not Path("answer-0").exists():
            await asyncio.sleep(0.01)
        (provider,) = providers.values()
        request = ChatRequest(messages=[Message(role="user", content=prompt)])
        response = await provider.complete(request)
        text = "".join(block.text for block in response.content)
        await context.add_message({"role": "assistant", "content": text})
        return text


async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Loop())
"""


@plain
def test_without_steering_the_line_is_the_next_prompt(tmp_path: Path, plain: bool) -> None:
    source = str(module_folder(tmp_path, PLAIN_LOOP, "amplifier_module_loop_plain"))
    session = {
        "orchestrator": {"module": "loop-plain", "source": source},
        "context": "context-simple",
    }
    with chat(tmp_path, ["first", "second"], plain=plain, session=session) as terminal:
        begin(terminal)
        terminal.enter("what now?", waits("will run when it finishes", r"what now\?"))
        let_go(tmp_path)
        terminal.until("first")
        terminal.until(r"[›>] what now\?")
        terminal.until("second")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["go", "what now?"]


STEERED_LOOP = """
import asyncio
import itertools
from pathlib import Path

__amplifier_module_type__ = "orchestrator"


class Loop:
    def __init__(self):
        self.queued = []

    def steer(self, text):
        self.queued.append(text)

    async def execute(self, prompt, context, providers, tools, hooks, **more):
        from amplifier_core.message_models import ChatRequest, Message

        self.queued.clear()
        texts = [prompt]
        (provider,) = providers.values()
        for step in itertools.count():
            for text in texts:
                await context.add_message({"role": "user", "content": text})
            await hooks.emit("provider:request", {"provider": "held", "iteration": step})
            while not Path(f"answer-{step}").exists():
                await asyncio.sleep(0.01)
            request = ChatRequest(messages=[Message(role="user", content=texts[-1])])
            response = await provider.complete(request)
            text = "".join(block.text for block in response.content)
            await context.add_message({"role": "assistant", "content": text})
            texts, self.queued[:] = [*self.queued], []
            if not texts:
                return text


async def mount(coordinator, config=None):
    loop = Loop()
    await coordinator.mount("orchestrator", loop)
    coordinator.register_capability("session.steer", loop.steer)
"""


def steered(tmp_path: Path, loop: str = STEERED_LOOP) -> dict[str, Any]:
    """A session whose loop accepts messages, but neither lists nor returns them."""
    source = str(module_folder(tmp_path, loop, "amplifier_module_loop_steered"))
    return {
        "orchestrator": {"module": "loop-steered", "source": source},
        "context": "context-simple",
    }


@plain
def test_a_loop_that_lists_no_messages_shows_them_once_it_has_used_them(
    tmp_path: Path, plain: bool
) -> None:
    replies = ["first", "second"]
    with chat(tmp_path, replies, plain=plain, held=(), session=steered(tmp_path)) as terminal:
        begin(terminal)
        terminal.enter("be brief", waits("queued for the next step", "be brief"))
        assert not re.search(r"[›>] be brief\s*\n", terminal.shown[terminal.shown.rindex("go") :])
        let_go(tmp_path)
        terminal.until("[›>] be brief")
        let_go(tmp_path, 1)
        terminal.until("second")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["go", "be brief"]


@plain
def test_ctrl_c_returns_lines_that_the_loop_would_drop(tmp_path: Path, plain: bool) -> None:
    with chat(tmp_path, ["fine"], plain=plain, held=(), session=steered(tmp_path)) as terminal:
        begin(terminal)
        terminal.enter("rather this", waits("queued for the next step", "rather this"))
        terminal.type(CTRL_C)
        key = "/retry" if plain else "Enter on an empty line"
        terminal.until(f"stopped before an answer; {key} sends")
        let_go(tmp_path)
        if plain:
            terminal.until("Not sent .*rather this")
        else:
            terminal.prompt()
            terminal.until("› rather this")
        terminal.type(ENTER)
        terminal.until("fine")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["go", "rather this"]


LATE_LOOP = STEERED_LOOP.replace(
    """\
            await hooks.emit("provider:request", {"provider": "held", "iteration": step})
            while not Path(f"answer-{step}").exists():
                await asyncio.sleep(0.01)
""",
    """\
            while not Path(f"answer-{step}").exists():
                await asyncio.sleep(0.01)
            request = {"provider": "held", "iteration": step}
            if (await hooks.emit("provider:request", request)).action == "deny":
                return ""
""",
)
"""Waits before its request, and uses messages only after an answer."""


def test_a_message_that_the_loop_has_not_used_is_the_prompt_in_the_background(
    tmp_path: Path,
) -> None:
    session = steered(tmp_path, LATE_LOOP)
    with chat(tmp_path, ["fine"], held=(), session=session) as terminal:
        begin(terminal)
        terminal.enter("rather this", waits("queued for the next step", "rather this"))
        terminal.type(CTRL_B)
        terminal.until("going to the background")
        let_go(tmp_path)
        terminal.until(r"amplifier session join ([0-9a-z-]+)\r?\n")
        assert terminal.finish() == 0
    match = re.search(r"amplifier session join ([0-9a-z-]+)", terminal.shown)
    assert match is not None
    joined = run_amplifier("session", "join", match[1], cwd=tmp_path)
    assert "fine" in joined.stdout
    assert prompts(match[1]) == ["go", "rather this"]


@plain
def test_a_question_waits_for_typing_to_pause_and_returns_the_keyboard(
    tmp_path: Path, plain: bool
) -> None:
    source = str(module_folder(tmp_path, ASKING_HOOK, "amplifier_module_hooks_ask"))
    write = {"name": "write_file", "input": {"path": "out.txt", "content": "x"}}
    with chat(
        tmp_path,
        [{"tool_calls": [write]}, "first", "second"],
        plain=plain,
        held=(0, 1),
        cold=True,
        hooks=[{"module": "hooks-ask", "source": source}],
        **FILES,
    ) as terminal:
        begin(terminal)
        terminal.type("a")
        let_go(tmp_path)
        for key in "fterw":
            terminal.type(key)
        terminal.until("a.*f.*t.*e.*r.*w")
        terminal.until(r"\[y\] Allow  \[n\] Deny:")
        terminal.type("y" + ENTER if plain else "y")
        terminal.until("[›>] afterw")
        if not plain:
            terminal.until("afterw")
        terminal.enter("ards", waits("queued for the next step", "afterwards"))
        let_go(tmp_path, 1)
        terminal.until("second")
        terminal.prompt()
        assert prompts(leave(terminal)) == ["go", "afterwards"]
    assert (tmp_path / "out.txt").exists()


def test_a_narrower_terminal_shows_the_live_region_once(tmp_path: Path) -> None:
    with chat(tmp_path, ["done"]) as terminal:
        begin(terminal)
        terminal.until("waiting")
        terminal.enter("later", "queued for the next step: later")
        before = len(terminal.raw)
        terminal.process.setwinsize(30, 40)
        terminal.until("queued for the next step: later")
        erased = terminal.raw.index(ERASE_DOWN, before)
        fed = terminal.raw.rindex("\x1b[?2026h", 0, erased)
        emulator = Emulator(100, 30)
        emulator.feed(terminal.raw[:fed])
        emulator.narrow(40)
        while True:
            emulator.feed(terminal.raw[fed:])
            fed = len(terminal.raw)
            shown = emulator.lines()
            # A frame of the spinner may come before the size is known: all is drawn a second time.
            if queued := sum("queued for the next step" in line for line in shown):
                break
            assert terminal.read() is None
        assert queued == 1
        assert sum("waiting" in line for line in shown) == 1
        let_go(tmp_path)
        terminal.until("done")
