"""Recognizing slash commands, and answers to questions."""

import asyncio
import re
from types import SimpleNamespace
from typing import Any

import pytest
from prompt_toolkit.completion import CompleteEvent
from prompt_toolkit.document import Document

from amplifier_app.base.errors import UsageError
from amplifier_app.chat.ask import choose
from amplifier_app.chat.conversation import ChatCompleter
from amplifier_app.chat.slash.contributed import contributed_commands
from amplifier_app.chat.slash.registry import all_commands, command_in, run_command
from amplifier_core.coordinator import ModuleCoordinator
from tests.app.chat.slash import Notices, read_text


@pytest.mark.parametrize(
    ("text", "command"),
    [
        ("/help", "/help"),
        ("/model gpt", "/model"),
        ("/bogus\nmore", "/bogus"),
        ("/usr/bin/env is missing", None),
        (" /help", None),
        ("help", None),
        ("/", None),
        ("/1", None),
    ],
)
def test_a_command_is_a_slash_and_a_word(text: str, command: str | None) -> None:
    assert command_in(text) == command


@pytest.mark.parametrize(
    ("answer", "choice"),
    [
        ("1", "Allow"),
        ("2", "Deny"),
        ("3", "Allow always"),
        ("0", None),
        ("4", None),
        ("allow", "Allow"),
        ("ALLOW ALWAYS ", "Allow always"),
        ("d", "Deny"),
        ("a", None),
        ("", None),
        ("yes", None),
    ],
)
def test_an_answer_is_a_number_a_name_or_a_prefix(answer: str, choice: str | None) -> None:
    assert choose(answer, ["Allow", "Deny", "Allow always"]) == choice


def test_every_command_has_a_summary_that_fits_a_line() -> None:
    for one in all_commands().values():
        assert one.summary[:1].isupper()
        assert len(one.summary) < 60
        assert not one.summary.endswith(".")


@pytest.mark.parametrize("is_plain", [False, True])
async def test_help_lists_the_keys_that_work(is_plain: bool) -> None:
    chat: Any = SimpleNamespace(commands=all_commands(), is_plain=is_plain)
    shown = read_text(await run_command("/help", chat))
    for text in ("/undo [list|force]", "@path:10-40", "!command", "Ctrl-D"):
        assert text in shown
    # Only the values of long names are below them.
    assert re.search(r"  /help +Commands and keys", shown)
    assert re.search(r"HOST…\] *\n {16,30}Show or change what commands may do", shown)
    headings = [line.strip() for line in shown.splitlines() if line[:1].strip()]
    assert headings[:4] == ["Conversation", "Sessions", "Model and permissions", "Files"]
    drawn = ("Shift-Tab", "Ctrl-R", "Ctrl-X Ctrl-E", "Alt-Enter")
    assert [key in shown for key in drawn] == [not is_plain] * 4
    assert ("\\ Enter" in shown) is is_plain


async def test_an_unknown_command_suggests_the_nearest() -> None:
    chat: Any = SimpleNamespace(commands=all_commands())
    with pytest.raises(UsageError) as error:
        await run_command("/stauts now", chat)
    assert error.value.message == "unknown command: /stauts"
    assert (error.value.hint or "").startswith("did you mean '/status'?")


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("/usage", "did you mean '/cost'?"),
        ("/rewind", "did you mean '/undo'?"),
        ("/new", "did you mean '/clear'?"),
        ("/theme", "Set it in your settings: 'display: {theme: light}'"),
        ("/vim", "Set it in your settings: 'display: {keys: vi}'"),
        ("/plugin", "Run in a shell: amplifier plugin list"),
        ("/doctor", "Run in a shell: amplifier doctor"),
    ],
)
async def test_the_command_of_another_agent_leads_to_what_is_here(name: str, expected: str) -> None:
    chat: Any = SimpleNamespace(commands=all_commands())
    with pytest.raises(UsageError) as error:
        await run_command(name, chat)
    assert (error.value.hint or "").startswith(expected)


async def test_contributed_commands_cannot_replace_or_break_others() -> None:
    coordinator, renderer = ModuleCoordinator(), Notices()

    def broken() -> Any:
        raise RuntimeError("no forecast today")

    rest: dict[str, Any] = {"summary": "Something", "handler": lambda city: f"{city}: sunny"}
    contributions: dict[str, Any] = {
        "tool-broken": broken,
        "tool-odd": lambda: ["text"],
        "tool-taken": lambda: {"name": "help"} | rest,
        "tool-named": lambda: {"name": "No Spaces"} | rest,
        "tool-bare": lambda: {"name": "bare"},
        "tool-weather": lambda: [{"name": "/forecast"} | rest],
    }
    for module, contribution in contributions.items():
        coordinator.register_contributor("chat.commands", module, contribution)
    session: Any = SimpleNamespace(
        session=SimpleNamespace(coordinator=coordinator),
        plan=SimpleNamespace(project=None, plugins={}),
    )
    found = await contributed_commands(session, all_commands(), renderer)
    assert list(found) == ["/forecast"]
    assert renderer.shown == [
        "tool-broken: cannot list its chat commands: no forecast today",
        "tool-odd: invalid chat command: expected a mapping, got str",
        "tool-taken: invalid chat command: /help already exists",
        "tool-named: invalid chat command: name must be lower-case letters, digits, '-' and '_', "
        "got 'No Spaces'",
        "tool-bare: invalid chat command: /bare needs 'summary' (text) and 'handler' (function)",
    ]
    chat: Any = SimpleNamespace(commands=found)
    assert await run_command("/forecast Oslo", chat) == "Oslo: sunny"


async def test_each_skill_is_a_command_unless_its_name_is_taken() -> None:
    coordinator, sent = ModuleCoordinator(), list[str]()
    skills = [
        {"name": name, "description": "Writes notes.\nReally.", "origin": "project"}
        for name in ("release-notes", "help", "Not a name")
    ]
    coordinator.register_contributor("skills", "tool-skills", lambda: skills)
    coordinator.register_contributor("skills", "odd", lambda: "text")
    session: Any = SimpleNamespace(
        session=SimpleNamespace(coordinator=coordinator),
        plan=SimpleNamespace(project=None, plugins={}),
    )
    found = await contributed_commands(session, all_commands(), Notices())
    assert [(one.name, one.summary) for one in found.values()] == [
        ("/release-notes", "Writes notes. Really. (project)")
    ]
    chat: Any = SimpleNamespace(commands=found, send=sent.append)
    await run_command("/release-notes", chat)
    await run_command("/release-notes for 1.2", chat)
    load = "Load the skill release-notes and follow it"
    assert sent == [f"{load}.", f"{load} for this:\n\nfor 1.2"]


def test_long_names_are_cut_in_the_list_of_commands_and_completed_whole() -> None:
    name = f"/{'n' * 64}"
    command = all_commands()["/help"]._replace(name=name, summary="Writes notes", usage="")
    chat: Any = SimpleNamespace(commands={name: command})
    [found] = ChatCompleter(chat).get_completions(Document("/n"), CompleteEvent())
    assert (found.text, found.display_text) == (name, f"{name[:29]}…")
    assert (found.start_position, found.display_meta_text) == (-2, "Writes notes")


async def chat_with(provider: Any, *, model: str) -> Any:
    """A plain chat whose first provider is `provider`."""
    coordinator = ModuleCoordinator()
    await coordinator.mount("providers", provider, "far")
    session: Any = SimpleNamespace(
        session=SimpleNamespace(coordinator=coordinator, config={"session": {"orchestrator": {}}}),
        facts=SimpleNamespace(model=model),
    )
    return SimpleNamespace(commands=all_commands(), session=session, is_plain=True)


async def test_the_current_model_is_marked_although_the_provider_does_not_list_it() -> None:
    class Listing:
        async def list_models(self) -> list[Any]:
            return [SimpleNamespace(id="m-2", context_window=200_000)]

    shown = read_text(await run_command("/model", await chat_with(Listing(), model="m-1")))
    assert [" ".join(line.split()) for line in shown.splitlines()[:2]] == [
        "* m-1 not listed by the provider",
        "m-2 200k tokens",
    ]
    shown = read_text(await run_command("/model", await chat_with(Listing(), model="m-2")))
    assert shown.startswith("* m-2")


async def test_model_shows_why_the_models_cannot_be_listed() -> None:
    class Unreachable:
        asked = 0

        async def list_models(self) -> list[Any]:
            self.asked += 1
            raise ConnectionError("connection refused")

    provider = Unreachable()
    chat = await chat_with(provider, model="m-1")
    complete = all_commands()["/model"].complete
    assert complete is not None
    # Completion asks once, however many keys are pressed.
    for _ in range(3):
        assert complete(chat, "") in ((), [])
        await asyncio.sleep(0)
        await asyncio.sleep(0)
    assert provider.asked == 1
    text = read_text(await run_command("/model", chat))
    assert "cannot list the models of far: connection refused" in text
    assert "/model NAME" in text


@pytest.mark.parametrize("is_resumed", [False, True])
async def test_a_resumed_session_names_the_command_that_takes_the_plan_as_it_is_now(
    is_resumed: bool,
) -> None:
    facts = SimpleNamespace(resumed=is_resumed, profile="default")
    session = SimpleNamespace(id="20260131-120000-a1b2c3", facts=facts)
    chat: Any = SimpleNamespace(session=session, commands=all_commands())
    with pytest.raises(UsageError) as caught:
        await run_command("/mcp", chat)
    assert "amplifier mcp add" in str(caught.value.hint)
    again = "amplifier run --resume a1b2c3 --profile default"
    assert (again in str(caught.value.hint)) is is_resumed
