"""`amplifier init` on a real pseudo-terminal, with typed answers."""

import re
from pathlib import Path

import pytest
import yaml

from amplifier_app.base.keys import Address, KeyStore
from tests.support.llm_server import Reply, ScriptedLLM, closed_port
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, PASTE, Terminal

KEY = "sk-secret-0123456789abcdef"

PROVIDER = r"Provider \[\w+\]: "
KEY_PROMPT = r"API key \([^)]*\): "
ADDRESS = r"API address[^\n]*: "
MODEL = r"\nModel \[[^\n]*\]: "
MODE = r"Mode \[ask\]: "


def left_behind(home: Path) -> list[str]:
    """The files created by the setup, except the cache."""
    return sorted(str(path.relative_to(home)) for path in home.rglob("*") if path.is_file())


def answer(terminal: Terminal, question: str, line: str) -> str:
    """Wait for a question and answer it; gives what was shown up to the question."""
    shown = terminal.until(question)
    terminal.type(line + ENTER)
    return shown


def test_from_nothing_to_a_first_answer(home: Path) -> None:
    models = ["claude-first", "claude-second"]
    with ScriptedLLM.running(["ready", "hello"], api_key=KEY, models=models) as server:
        env = {"ANTHROPIC_BASE_URL": server.base_url}
        with Terminal("init", env=env) as terminal:
            listed = answer(terminal, PROVIDER, "anthropic")
            assert re.search(r"\[1\] anthropic +Anthropic +ANTHROPIC_BASE_URL is set", listed)
            assert re.search(r"\[\d\] local +Embedded model +needs no key", listed)
            assert "mock" not in listed
            answer(terminal, KEY_PROMPT, PASTE.format(f"  {KEY} "))
            assert server.base_url in answer(terminal, r"API address[^\n]*: ", "")
            assert "[2] claude-second" in answer(terminal, MODEL, "2")
            terminal.until(r"works \(claude-second, ")
            answer(terminal, rf"anthropic is ready.*{MODE}", "")
            assert terminal.finish() == 0
        assert KEY not in terminal.raw
        assert len(server.completions) == 1
        with Terminal("run", "hi", env=env) as terminal:
            terminal.until("hello")
            assert terminal.finish() == 0
        assert server.completions[1].body["model"] == "claude-second"
    assert KeyStore().read("ANTHROPIC_API_KEY") == KEY
    (entry,) = yaml.safe_load((home / "settings.yaml").read_text())["providers"]
    assert entry == {"module": "provider-anthropic", "config": {"model": "claude-second"}}


def test_what_was_found_is_offered_first_and_enter_goes_on_with_it(home: Path) -> None:
    with ScriptedLLM.running(["ready"], api_key=KEY) as server:
        env = {"OPENAI_API_KEY": KEY, "OPENAI_BASE_URL": server.base_url}
        with Terminal("init", env=env) as terminal:
            listed = answer(terminal, PROVIDER, "")
            assert "By default `amplifier run` currently uses openai" in listed
            found = "OPENAI_API_KEY is set, OPENAI_BASE_URL is set"
            assert re.search(rf"\[1\] openai +OpenAI-compatible server +{found}", listed)
            assert "press Enter to keep it" in answer(terminal, KEY_PROMPT, "")
            answer(terminal, ADDRESS, "")
            answer(terminal, MODEL, "")
            answer(terminal, rf"openai is ready.*{MODE}", "")
            assert terminal.finish() == 0
    assert KeyStore().names() == {}
    assert KEY not in (home / "settings.yaml").read_text()


ANSWERS = [(PROVIDER, "openai"), (KEY_PROMPT, KEY), (ADDRESS, None), (MODEL, "m"), ("quit", "")]


@pytest.mark.parametrize(
    ("question", "leave"),
    [(0, CTRL_C), (1, CTRL_D), (2, CTRL_C), (3, CTRL_D), (4, CTRL_C)],
)
def test_leaving_at_any_question_leaves_nothing_behind(
    question: int, leave: str, home: Path
) -> None:
    with ScriptedLLM.running([], api_key="another") as server, Terminal("init") as terminal:
        for pattern, line in ANSWERS[:question]:
            answer(terminal, pattern, server.base_url if line is None else line)
        terminal.until(ANSWERS[question][0])
        terminal.type(leave)
        assert terminal.finish() == 130
    assert left_behind(home) == []
    assert KEY not in terminal.raw
    assert "Traceback" not in terminal.raw


def test_another_address_asks_for_another_key() -> None:
    stored = Address("OPENAI_BASE_URL", "http://127.0.0.1:9")
    KeyStore().store("OPENAI_API_KEY", "sk-of-another-server", address=stored)
    with (
        ScriptedLLM.running(["ready"], api_key=KEY, models=["m"]) as server,
        Terminal("init", "-p", "openai") as terminal,
    ):
        assert "press Enter to keep it" in answer(terminal, KEY_PROMPT, "")
        assert "http://127.0.0.1:9" in answer(terminal, ADDRESS, server.base_url)
        assert "keep it" not in answer(terminal, r"API key \([^)]*\): ", KEY)
        answer(terminal, MODEL, "")
        answer(terminal, rf"openai is ready.*{MODE}", "")
        assert terminal.finish() == 0
        assert all("another-server" not in str(request.headers) for request in server.requests)
    assert KeyStore().names()["OPENAI_API_KEY"].address == ("OPENAI_BASE_URL", server.base_url)


def test_leaving_during_the_test_leaves_nothing_behind(home: Path) -> None:
    with ScriptedLLM.running([Reply("late", delay=60)]) as server:
        options = ("-p", "openai", "--base-url", server.base_url, "-m", "m")
        with Terminal("init", *options) as terminal:
            answer(terminal, KEY_PROMPT, KEY)
            server.wait_for_requests(1)
            terminal.type(CTRL_C)
            assert terminal.finish() == 130
    assert left_behind(home) == []


def test_after_a_refused_key_another_one_can_be_given(home: Path) -> None:
    with (
        ScriptedLLM.running(["ready"], api_key=KEY, models=["m"]) as server,
        Terminal("init", "-p", "openai", "--base-url", server.base_url) as terminal,
    ):
        answer(terminal, KEY_PROMPT, "sk-wrong")
        answer(terminal, MODEL, "m")
        assert "The key was rejected" in answer(terminal, "quit: ", "1")
        answer(terminal, KEY_PROMPT, KEY)
        answer(terminal, ADDRESS, "")
        answer(terminal, MODEL, "")
        answer(terminal, rf"openai is ready.*{MODE}", "")
        assert terminal.finish() == 0
    assert KeyStore().read("OPENAI_API_KEY") == KEY
    assert left_behind(home) == [
        ".settings.lock",
        "keys/keys.json",
        "keys/keys.lock",
        "settings.yaml",
    ]


@pytest.mark.parametrize(("choice", "saved"), [("save", True), ("quit", False)])
def test_what_cannot_be_reached_can_be_saved_anyway(choice: str, saved: bool, home: Path) -> None:
    with closed_port() as port:
        options = ("-p", "openai", "--base-url", f"http://127.0.0.1:{port}", "-m", "m")
        with Terminal("init", *options) as terminal:
            answer(terminal, KEY_PROMPT, KEY)
            shown = answer(terminal, "quit: ", choice)
            assert "unreachable or busy" in shown
            if saved:
                answer(terminal, MODE, "")
            assert terminal.finish() == (0 if saved else 130)
    assert list(KeyStore().names()) == (["OPENAI_API_KEY"] if saved else [])
    assert (home / "settings.yaml").exists() == saved


def test_an_unknown_model_is_reported_as_such() -> None:
    with ScriptedLLM.running(["never"], models=["m"]) as server:
        options = ("-p", "openai", "--base-url", server.base_url, "-m", "no-such-model")
        with Terminal("init", *options) as terminal:
            answer(terminal, KEY_PROMPT, KEY)
            assert "check the model name" in answer(terminal, "quit: ", "quit")
            assert terminal.finish() == 130


def test_an_invalid_configuration_is_reported_in_the_words_of_the_module() -> None:
    with Terminal("init", "-p", "local", "-m", "nope", size=(200, 30)) as terminal:
        terminal.until(
            "The provider is not configured correctly: provider-local: unknown model 'nope'"
        )
        terminal.until("try again")


def test_no_test_contacts_no_provider_and_invalid_answers_are_asked_again() -> None:
    with ScriptedLLM.running([]) as server:
        with Terminal("init", "--no-test") as terminal:
            answer(terminal, PROVIDER, "9")
            answer(terminal, r"a number from 1[^\n]*\s+Provider \[\w+\]: ", "openai")
            answer(terminal, KEY_PROMPT, "two words")
            answer(terminal, r"white space[^\n]*\s+[^\n]*\): ", KEY)
            answer(terminal, ADDRESS, "nowhere")
            answer(terminal, r"not a URL[^\n]*\s+API address[^\n]*: ", server.base_url)
            answer(terminal, MODEL, "two words")
            answer(terminal, r"cannot contain spaces[^\n]*\s+Model[^\n]*: ", "m")
            answer(terminal, rf"openai is ready.*{MODE}", "")
            assert terminal.finish() == 0
        assert server.requests == []
    assert KeyStore().read("OPENAI_API_KEY") == KEY


def test_names_of_models_command_no_terminal() -> None:
    evil = "m\x1b]0;owned\x07\x1b[2J\u202e"
    with (
        ScriptedLLM.running(["ready"], models=[evil, "m"]) as server,
        Terminal("init", "-p", "openai", "--base-url", server.base_url) as terminal,
    ):
        answer(terminal, KEY_PROMPT, KEY)
        answer(terminal, MODEL, "2")
        answer(terminal, rf"openai is ready.*{MODE}", "")
        assert terminal.finish() == 0
    assert "\x1b]" not in terminal.raw
    assert "\x1b[2J" not in terminal.raw
    assert "\u202e" not in terminal.raw


def mode_in(home: Path) -> object:
    return yaml.safe_load((home / "settings.yaml").read_text()).get("hooks")


def test_the_mode_is_asked_until_one_is_chosen(home: Path) -> None:
    with ScriptedLLM.running(["ready"] * 4, models=["m"]) as server:
        options = ("init", "-p", "openai", "--base-url", server.base_url, "-m", "m", "--no-test")
        for line, code in ((ENTER, 0), (CTRL_C, 130), (CTRL_D, 0)):
            with Terminal(*options) as terminal:
                answer(terminal, KEY_PROMPT, "")
                shown = terminal.until(MODE)
                assert re.search(r"\[2\] edits +edits in the working directory", shown)
                terminal.type(line)
                assert terminal.finish() == code
            assert mode_in(home) is None
        with Terminal(*options) as terminal:
            answer(terminal, KEY_PROMPT, "")
            answer(terminal, MODE, "7")
            answer(terminal, r"Enter a number from 1 to 5, or a name\.\s+Mode \[ask\]: ", "edits")
            terminal.until(r"settings.yaml:\s+mode\s+edits")
            assert terminal.finish() == 0
        assert mode_in(home) == [{"module": "hooks-approval", "config": {"mode": "edits"}}]
        with Terminal(*options) as terminal:
            answer(terminal, KEY_PROMPT, "")
            assert "Mode [" not in terminal.until("Three things to try")
            assert terminal.finish() == 0
        with Terminal("run") as terminal:
            terminal.until("edits · m")
