"""The first run on a terminal without a configured provider."""

import io
import json
import os
import re
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

import pyte
import pytest
import yaml

from amplifier_app.base.keys import KeyStore
from amplifier_app.commands.init import onboarding
from amplifier_app.commands.init.setup import suggestions
from amplifier_support.installation import install_command
from tests.support.cli import run_amplifier
from tests.support.http_server import QuietHandler, serving
from tests.support.llm_server import ScriptedLLM
from tests.support.terminal import CTRL_C, CTRL_D, ENTER, Terminal

KEY = "sk-secret-0123456789abcdef"
MENU = r"No model is set up yet[\s\S]*› "
NO_OLLAMA = {"OLLAMA_HOST": "127.0.0.1:9"}


@contextmanager
def ollama(*models: str) -> Generator[str]:
    """A server that lists models as Ollama does; yields its address."""

    class Handler(QuietHandler):
        def do_GET(self) -> None:
            body = json.dumps({"models": [{"name": name} for name in models]}).encode()
            found = self.path == "/api/tags"
            self.send_head("application/json", len(body), 200 if found else 404)
            self.wfile.write(body)

    with serving(Handler) as url:
        yield url.removeprefix("http://")


def home() -> Path:
    return Path(os.environ["AMPLIFIER_HOME"])


def answer(terminal: Terminal, question: str, line: str) -> str:
    shown = terminal.until(question)
    terminal.type(line + ENTER)
    return shown


def test_a_key_is_asked_for_saved_and_the_prompt_is_answered(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("print()\n")
    models = ["claude-first", "claude-second"]
    with ScriptedLLM.running(["ready", "hello", "again"], api_key=KEY, models=models) as server:
        env = {"ANTHROPIC_BASE_URL": server.base_url, **NO_OLLAMA}
        with Terminal("run", "hi", env=env, cwd=tmp_path) as terminal:
            shown = answer(terminal, MENU, "1")
            for choice in ("1  Anthropic", "2  OpenAI", "3  My server", "4  Just try it"):
                assert choice in shown
            answer(terminal, r"API key \([^)]*\): ", KEY)
            answer(terminal, r"Model \[claude-first\]: ", "")
            terminal.until(r"works \(claude-first, ")
            terminal.until("Three things to try here:\r\n  What does this project do")
            terminal.until("Explain app.py step by step.")
            terminal.until("hello")
            assert terminal.finish() == 0
        assert KEY not in terminal.raw
        assert "because ANTHROPIC_API_KEY" not in terminal.raw
        done = run_amplifier("run", "again", env=env)
        assert (done.code, done.stdout) == (0, "again\n"), done.stderr
        assert [one.body["model"] for one in server.completions] == ["claude-first"] * 3
    assert KeyStore().read("ANTHROPIC_API_KEY") == KEY


def test_the_chat_follows_the_setup_of_a_server(tmp_path: Path) -> None:
    with (
        ollama("a", "b") as address,
        ScriptedLLM.running(["ready", "hello"], api_key=KEY, models=["llama"]) as server,
        Terminal(env={"OLLAMA_HOST": address}, cwd=tmp_path) as terminal,
    ):
        shown = answer(terminal, MENU, "3")
        assert f"(Ollama found at {address}, 2 models)" in re.sub(r"\s+", " ", shown)
        assert f"[http://{address}/v1]" in answer(terminal, r"API address [^\n]*: ", "nonsense")
        answer(terminal, r"Invalid address[^\n]*\s+API address [^\n]*: ", server.openai_base_url)
        assert "OpenAI" not in answer(terminal, r"API key \([^)]*\): ", KEY)
        answer(terminal, r"Model \[llama\]: ", "")
        terminal.until(r"Testing the server … works")
        terminal.until("is ready")
        terminal.until("/help for commands")
        terminal.enter("hi", "hello")
        terminal.quit()
    (entry,) = yaml.safe_load((home() / "settings.yaml").read_text())["providers"]
    assert entry["config"]["model"] == "llama"
    assert KeyStore().names()["OPENAI_API_KEY"].address == (
        "OPENAI_BASE_URL",
        server.openai_base_url,
    )


@pytest.mark.parametrize("leave", [CTRL_C, CTRL_D])
def test_leaving_the_menu_saves_nothing(leave: str) -> None:
    with Terminal("run", "hi", env=NO_OLLAMA) as terminal:
        terminal.until(MENU)
        terminal.type(leave)
        assert terminal.finish() == 130
    assert not (home() / "settings.yaml").exists()
    assert not (home() / "sessions").exists()


def test_the_demo_model_is_chosen_for_one_run_only() -> None:
    env = {**NO_OLLAMA, "AMPLIFIER_OFFLINE": "1"}
    for _ in range(2):
        with Terminal("run", "hi", env=env) as terminal:
            answer(terminal, MENU, "4")
            terminal.until("cannot read files or run commands")
            # Its weights are not on this machine.
            terminal.until("smollm2-135m")
            assert terminal.finish() != 0
    assert not (home() / "settings.yaml").exists()


def test_a_demo_model_that_is_not_installed_is_not_chosen(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "xllamacpp", None)
    monkeypatch.setattr(onboarding, "find_ollama", lambda: None)
    monkeypatch.setattr(sys, "stdin", io.StringIO("4\n"))
    with pytest.raises(KeyboardInterrupt):
        onboarding.onboard()
    shown = capsys.readouterr().err
    assert f"is not installed: install it with: {install_command('local')}" in shown
    assert "98 MB" not in shown


@pytest.mark.parametrize("profile", [(), ("-P", "minimal")])
def test_without_a_terminal_no_model_is_asked(profile: tuple[str, ...]) -> None:
    done = run_amplifier("run", *profile, "hi")
    assert (done.code, done.stdout) == (78, "")
    assert "no model provider is set up" in done.stderr
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert "amplifier init" in done.stderr
    assert "--profile local" in done.stderr


def test_the_provider_is_named_once_per_choice_and_only_on_a_terminal(tmp_path: Path) -> None:
    with ScriptedLLM.running(["hello"] * 4) as server:
        env = {"ANTHROPIC_BASE_URL": server.base_url, "ANTHROPIC_API_KEY": KEY}
        assert run_amplifier("run", "hi", env=env, cwd=tmp_path).stderr == ""
        notices: list[bool] = []
        for model in ("m", "m", "n"):
            with Terminal("run", "-m", model, "hi", env=env) as terminal:
                assert terminal.finish() == 0
                notices.append("because ANTHROPIC_API_KEY is set" in terminal.raw)
    assert notices == [True, False, True]


@pytest.mark.parametrize(
    ("files", "expected"),
    [
        ([], "lists the largest files of a folder"),
        (["notes.txt"], "Summarize the files in this folder."),
        (["src/app.go", "src/__init__.py"], "Explain src/app.go step by step."),
        (["lib/a.py", "tests/test_a.py", "node_modules/x.js"], "Which tests cover lib/a.py?"),
        ([".git/HEAD", "a.py"], "Review my latest changes."),
    ],
)
def test_suggestions_fit_the_folder(files: list[str], expected: str, tmp_path: Path) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).write_text("")
    found = suggestions(tmp_path)
    assert len(found) == 3
    assert expected in "\n".join(found)


@pytest.mark.parametrize("columns", [40, 120])
def test_the_menu_fits_the_terminal(columns: int) -> None:
    with Terminal("run", "hi", env={**NO_OLLAMA, "COLUMNS": None}, size=(columns, 30)) as terminal:
        terminal.until(MENU)
        screen = pyte.Screen(columns, 30)
        pyte.Stream(screen).feed(terminal.raw)
        terminal.type(CTRL_D)
        assert terminal.finish() == 130
    lines = [line.rstrip() for line in screen.display]
    # Words and addresses are whole: nothing was wrapped by the terminal itself.
    text = "\n".join(lines)
    words = ("Anthropic", "paste a key", "OpenAI-compatible", "Just try it", "chat only, no tools")
    assert [word for word in words if word not in text] == []
    rows = [line for line in lines if re.match(r"  \d  ", line)]
    assert [line[2:].split()[0] for line in rows] == ["1", "2", "3", "4"]
    assert ("paste" in rows[0]) == (columns >= 60)
