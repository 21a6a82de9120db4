"""The first run on a terminal: choose a model when no provider is set up."""

from __future__ import annotations

import json
import os
from http.client import HTTPException
from importlib.util import find_spec
from urllib.request import ProxyHandler, build_opener

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import KeyStore
from amplifier_app.base.own_packages import version_line
from amplifier_app.base.paths import short_path
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import terminal_size, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.init.interview import Interview
from amplifier_app.commands.init.setup import (
    Given,
    build_offer,
    problem_of_address,
    report_saved,
    save,
    show_suggestions,
    user_plan,
)
from amplifier_app.plan.resolution import NO_PROVIDER, SET_UP
from amplifier_app.render.ansi import wrapped
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime import describe
from amplifier_app.runtime.provider_access import find_provider
from amplifier_app.runtime.status import git_branch
from amplifier_support.installation import install_command
from amplifier_support.named_tuple import NamedTuple

_TEST_SECONDS = 60.0
_PROBE_SECONDS = 0.4
_PROBE_BYTES = 1 << 20
_OLLAMA = "localhost:11434"
_NARROW = 60


class Ollama(NamedTuple):
    """An Ollama server that answers.

    Attributes:
        address: Host and port.
        models: Number of its models.
    """

    address: str
    models: int


def onboard() -> bool:
    """Ask how to work, and set it up.

    Returns:
        Whether a provider is set up now; False to use the demo model for this run only.

    Raises:
        KeyboardInterrupt: The user cancelled; nothing was saved.
        ConfigError: The setup was given up, or cannot be saved.
    """
    ollama = find_ollama()
    server = "any OpenAI-compatible address"
    if ollama is not None:
        models = describe.count(ollama.models, "model")
        server = f"{server} (Ollama found at {ollama.address}, {models})"
    is_installed = find_spec("xllamacpp") is not None
    demo = "a tiny offline demo model, 98 MB, chat only, no tools" if is_installed else ""
    install = f"install it with: {install_command('local')}"
    rows = {
        "Anthropic": "paste a key (console.anthropic.com/settings/keys)",
        "OpenAI": "paste a key (platform.openai.com/api-keys)",
        "My server": server,
        "Just try it": demo or f"a tiny offline demo model; {install}",
    }
    folder = os.getcwd()
    branch = git_branch(folder)
    head = [version_line().capitalize(), short_path(folder)]
    head += [f"git {branch}"] if branch else []
    to_stderr(for_terminal(" · ".join(head)))
    to_stderr("\nNo model is set up yet. How do you want to work?")
    for line in _menu(rows, terminal_size(2)[0]):
        to_stderr(line)
    interview = Interview(run_loop, StderrNotices(quiet=False), _TEST_SECONDS)
    while True:
        answer = interview.pick("› ", list(rows), hint="Enter a number from 1 to {}.")
        if answer != "Just try it" or demo:
            break
        to_stderr(f"The demo model is not installed: {install}")
    if answer == "Just try it":
        to_stderr(
            "The demo model answers in this run only. It cannot read files or run commands.\n"
        )
        return False
    _set_up(interview, answer, ollama)
    return True


def _set_up(interview: Interview, answer: str, ollama: Ollama | None) -> None:
    address = None
    if answer == "My server":
        address = _address(interview, ollama and f"http://{ollama.address}/v1")
    name = "anthropic" if answer == "Anthropic" else "openai"
    plan = user_plan()
    offer = run_loop(build_offer(find_provider(plan, name), plan, KeyStore().names()))
    # Most users have a key and no address of their own; `init` asks for both.
    choice = interview.hold([offer], Given(base_url=address), skip={"base_url"})
    if choice is None:
        raise ConfigError(NO_PROVIDER, hint=SET_UP)
    report_saved(choice, save(choice))
    show_suggestions(as_commands=False)


def _address(interview: Interview, default: str | None) -> str:
    question = f"API address [{default}]: " if default else "API address (http://…/v1): "
    while True:
        answer = interview.line(question) or default or ""
        problem = problem_of_address(answer)
        if problem is None:
            return answer
        to_stderr(f"Invalid address: {problem}.")


def _menu(rows: dict[str, str], columns: int) -> list[str]:
    """The numbered choices, wrapped to the terminal."""
    width = max(map(len, rows))
    lines: list[str] = []
    for number, (name, about) in enumerate(rows.items(), 1):
        head = f"  {number}  {name.ljust(width)}  "
        if columns < _NARROW:
            lines.append(head.rstrip())
            head = " " * 5
        lines += wrapped(head + about, max(columns, 30), " " * len(head))
    return lines


def find_ollama() -> Ollama | None:
    """The Ollama server of this machine, if one answers within a moment."""
    named = os.environ.get("OLLAMA_HOST", "").removeprefix("http://").rstrip("/")
    address = named if ":" in named else _OLLAMA
    # A proxy does not reach this machine.
    opener = build_opener(ProxyHandler({}))
    try:
        with opener.open(f"http://{address}/api/tags", timeout=_PROBE_SECONDS) as response:
            listed = json.loads(response.read(_PROBE_BYTES))
        return Ollama(address, len(listed["models"]))
    # Anything may listen on the port.
    except (OSError, HTTPException, ValueError, KeyError, TypeError, RecursionError):
        return None
