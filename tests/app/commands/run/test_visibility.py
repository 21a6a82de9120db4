"""Which marked blocks are shown on stdout, in JSON, on a terminal and in `session show`."""

import json
import os
import re
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import run_amplifier
from tests.support.plans import mock_plan, module_folder
from tests.support.terminal import ENTER, Chat, Terminal

CONTENT = [
    {
        "type": "thinking",
        "thinking": "thought-internal",
        "signature": "s",
        "visibility": "internal",
    },
    {"type": "thinking", "thinking": "thought-unmarked", "signature": "s"},
    {"type": "text", "text": "text-internal\n", "visibility": "internal"},
    {"type": "text", "text": "text-developer\n", "visibility": "developer"},
    {"type": "text", "text": "text-user\n", "visibility": "user"},
    {"type": "text", "text": "text-unmarked"},
]
SHOWN = {
    None: ["text-user", "text-unmarked"],
    "developer": ["text-developer", "text-user", "text-unmarked"],
    "internal": ["text-internal", "text-developer", "text-user", "text-unmarked"],
}


def marked_plan(folder: Path, *, streaming: bool = True, **more: Any) -> Path:
    mock = {"streaming": streaming, "on_end": "cycle", "chunk_size": 3}
    return mock_plan(folder, [{"content": CONTENT}], mock=mock, **more)


def texts(shown: str, kind: str = "text") -> list[str]:
    """The words of marked blocks in the output, in order, each once."""
    return list(dict.fromkeys(re.findall(rf"\b{kind}-[a-z]+", shown)))


def options(level: str | None) -> list[str]:
    return [] if level is None else ["--show", level]


@pytest.mark.parametrize(
    ("level", "tools", "streaming"),
    [
        (None, [], True),
        (None, ["tool-todo"], False),
        ("developer", [], False),
        ("developer", ["tool-todo"], True),
        ("internal", [], True),
        ("internal", ["tool-todo"], False),
    ],
)
def test_stdout_has_the_blocks_of_the_level(
    tmp_path: Path, level: str | None, tools: list[str], streaming: bool
) -> None:
    plan = marked_plan(tmp_path, streaming=streaming, tools=tools)
    done = run_amplifier("run", "-f", plan, "go", *options(level))
    assert (done.code, done.stdout.splitlines()) == (0, SHOWN[level])


@pytest.mark.parametrize("level", SHOWN)
def test_json_has_the_blocks_of_the_level(tmp_path: Path, level: str | None) -> None:
    plan = marked_plan(tmp_path)
    done = run_amplifier("run", "-f", plan, "go", "--output", "stream-json", *options(level))
    events = [json.loads(line) for line in done.stdout.splitlines()]
    streamed = "".join(event["delta"] for event in events if event["type"] == "text")
    thought = "".join(event["delta"] for event in events if event["type"] == "thinking")
    assert streamed.splitlines() == events[-1]["response"].splitlines() == SHOWN[level]
    assert ("thought-internal" in thought) is (level == "internal")
    assert "thought-unmarked" in thought


@pytest.mark.parametrize(
    ("level", "screen"),
    [(None, "full"), ("internal", "full"), ("developer", "plain"), ("internal", "answer")],
)
def test_a_terminal_shows_the_blocks_of_the_level(
    tmp_path: Path, level: str | None, screen: str
) -> None:
    plan = marked_plan(tmp_path)
    with Terminal("run", "-f", plan, "go", "--screen", screen, *options(level)) as terminal:
        assert terminal.finish() == 0
        assert texts(terminal.shown) == SHOWN[level]
        thoughts = texts(terminal.shown, "thought")
        folded = screen == "full" and level in (None, "user")
        assert ("thought-unmarked" in thoughts) is (screen != "answer" and not folded)
        assert ("thought-internal" in thoughts) is (level == "internal" and screen != "answer")


def test_the_session_saves_every_block_and_shows_those_of_the_level(tmp_path: Path) -> None:
    home = run_amplifier("run", "-f", marked_plan(tmp_path), "go", "--session", "s").home
    [_, answer] = map(
        json.loads, (home / "sessions" / "s" / "transcript.jsonl").read_text().splitlines()
    )
    assert answer["content"] == CONTENT
    for level, shown in SHOWN.items():
        for output in ("text", "json"):
            done = run_amplifier("session", "show", "s", "--output", output, *options(level))
            assert texts(done.stdout) == shown
            assert ("thought-internal" in done.stdout) is (level == "internal")


def test_settings_set_the_level_and_the_option_overrides_it(tmp_path: Path) -> None:
    home = Path(os.environ["AMPLIFIER_HOME"])
    home.mkdir(exist_ok=True)
    settings = home / "settings.yaml"
    settings.write_text("display: {show: developer}\n")
    plan = marked_plan(tmp_path)
    done = run_amplifier("run", "-f", plan, "go", "--session", "s")
    assert done.stdout.splitlines() == SHOWN["developer"]
    assert texts(run_amplifier("session", "show", "s").stdout) == SHOWN["developer"]
    done = run_amplifier("run", "-f", plan, "go", "--show", "internal")
    assert done.stdout.splitlines() == SHOWN["internal"]
    settings.write_text("display: {show: everything, colour: red}\n")
    done = run_amplifier("run", "-f", plan, "go")
    assert (done.code, done.stdout) == (78, "")
    assert "settings.yaml:1" in done.stderr
    assert "one of user, developer, internal" in done.stderr
    assert "unknown key 'colour'" in done.stderr


def test_think_toggles_thinking_in_the_chat(tmp_path: Path) -> None:
    with Chat("-f", marked_plan(tmp_path)) as terminal:
        terminal.type("one" + ENTER)
        first = terminal.until("text-unmarked")
        assert ("thought-unmarked" in first, "thought-internal" in first) == (False, False)
        for answer, seen in (("Thinking is shown", True), ("Thinking is hidden", False)):
            terminal.prompt()
            terminal.enter("/think", answer)
            if seen:  # what was folded, too
                terminal.until("thought-unmarked")
            terminal.prompt()
            terminal.type("more" + ENTER)
            turn = terminal.until("text-unmarked")
            assert ("thought-unmarked" in turn, "thought-internal" in turn) == (seen, seen)
        terminal.prompt()
        terminal.quit()


def test_an_answer_that_is_entirely_hidden_is_not_a_success(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [{"content": [CONTENT[2]]}])
    done = run_amplifier("run", "-f", plan, "go")
    assert (done.code, done.stdout) == (5, "")
    assert "--show internal" in done.stderr


NO_ANSWER = "the model ended without an answer"


@pytest.mark.parametrize("reply", ["", {"thinking": "hm", "signature": "s"}])
def test_an_empty_answer_is_not_a_success(tmp_path: Path, reply: Any) -> None:
    done = run_amplifier(
        *("run", "-f", mock_plan(tmp_path, [reply]), "go", "--output", "stream-json")
    )
    result = json.loads(done.stdout.splitlines()[-1])
    assert (done.code, result["outcome"], result["response"]) == (5, "provider", "")
    assert result["error"]["message"] == NO_ANSWER


def test_an_empty_answer_is_reported_to_the_quiet_too(tmp_path: Path) -> None:
    done = run_amplifier("run", "-f", mock_plan(tmp_path, [""]), "go", "--quiet")
    assert (done.code, NO_ANSWER in done.stderr) == (5, True)


def test_an_empty_answer_is_reported_in_the_chat(tmp_path: Path) -> None:
    with Chat("-f", mock_plan(tmp_path, [{"thinking": "hm"}])) as terminal:
        terminal.ask("go", NO_ANSWER)
        terminal.quit()


LOOP = """
__amplifier_module_type__ = "orchestrator"


class Loop:
    async def execute(self, prompt, context, providers, tools, hooks, **kwargs):
        await context.add_message({"role": "user", "content": prompt})
        response = await next(iter(providers.values())).complete(
            {"messages": await context.get_messages_for_request()}
        )
        blocks = [block.model_dump() for block in response.content]
        for index, block in enumerate(blocks):
            about = {"block_index": index, "total_blocks": len(blocks)}
            await hooks.emit("content_block:start", {"block_type": block["type"], **about})
            await hooks.emit("content_block:end", {"block": block, **about})
        await context.add_message({"role": "assistant", "content": blocks})
        return "\\n\\n".join(block["text"] for block in blocks if block["type"] == "text")


async def mount(coordinator, config=None):
    await coordinator.mount("orchestrator", Loop())
"""


def test_the_answer_of_a_published_loop_is_shown_without_hidden_blocks(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, LOOP, "amplifier_module_loop_theirs"))
    loop = {"module": "loop-theirs", "source": source}
    plan = marked_plan(tmp_path, session={"orchestrator": loop, "context": "context-simple"})
    done = run_amplifier("run", "-f", plan, "go")
    assert (done.code, texts(done.stdout)) == (0, SHOWN[None]), done.stderr
    with Terminal("run", "-f", plan, "go") as terminal:
        assert terminal.finish() == 0
        assert texts(terminal.shown) == SHOWN[None]
