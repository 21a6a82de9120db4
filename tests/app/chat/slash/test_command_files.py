"""Slash commands that a module reads from files."""

from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_app.base.errors import ModuleError
from amplifier_app.chat.slash.contributed import file_commands
from amplifier_core.coordinator import ModuleCoordinator
from amplifier_support.session_capabilities import COMMAND_EXECUTOR, COMMAND_REGISTRY
from tests.app.chat.slash import Notices


class Answers:
    """Answers every approval request."""

    def __init__(self, answer: str) -> None:
        self.answer = answer
        self.asked: list[str] = []

    async def request_approval(self, prompt: str, *_: Any) -> str:
        self.asked.append(prompt)
        return self.answer


class Registry:
    def __init__(self, *commands: Any) -> None:
        self.commands = commands

    def list_commands(self) -> list[Any]:
        return list(self.commands)


class Executor:
    """Makes the prompt of a command, or raises what is set."""

    def __init__(self, **result: Any) -> None:
        self.result = {"warnings": None, "model_override": None, **result}

    async def execute_full(self, name: str, arguments: str, namespace: str | None) -> Any:
        if isinstance(error := self.result.get("error"), Exception):
            raise error
        return SimpleNamespace(prompt=f"{namespace}:{name} {arguments}", **self.result)


def command(name: str, *, scope: str = "user", namespace: str | None = None, **more: Any) -> Any:
    about = {"description": f"Does {name}", "argument_hint": None, "requires_approval": False}
    metadata = SimpleNamespace(**{**about, "approval_message": None, **more})
    file = f"{namespace or '.'}/{name}.md"
    return SimpleNamespace(
        name=name, scope=scope, namespace=namespace, metadata=metadata, source_file=file
    )


class Chat:
    """What a command may use of the chat."""

    def __init__(self, *commands: Any, answer: str = "Allow", trusted: bool = True) -> None:
        self.coordinator = ModuleCoordinator()
        self.answers: Any = Answers(answer)
        self.coordinator.approval_system = self.answers
        COMMAND_REGISTRY.register(self.coordinator, Registry(*commands))
        COMMAND_EXECUTOR.register(self.coordinator, Executor())
        self.renderer = Notices()
        self.session: Any = SimpleNamespace(
            session=SimpleNamespace(coordinator=self.coordinator),
            plan=SimpleNamespace(project="/p/.amplifier" if trusted else None),
        )
        self.sent: list[tuple[str, bool]] = []

    def send(self, prompt: str, *, adds_files: bool = True) -> None:
        self.sent.append((prompt, adds_files))

    def commands(self) -> dict[str, Any]:
        return file_commands(self.session, {"/help"}, self.renderer)

    async def run(self, name: str, argument: str = "") -> Any:
        chat: Any = self
        return await self.commands()[name].run(chat, argument)


async def test_a_command_sends_its_prompt_without_files_that_its_text_mentions() -> None:
    chat = Chat(command("review", argument_hint=["file", "depth"]))
    listed = chat.commands()["/review"]
    assert (listed.usage, listed.summary) == ("[file] [depth]", "Does review (user)")
    assert await chat.run("/review", "src") is None
    assert chat.sent == [("None:review src", False)]


async def test_what_the_module_reports_about_a_command_is_shown() -> None:
    chat = Chat(command("review"))
    executor = Executor(warnings=["id is blocked"], model_override="small-1")
    COMMAND_EXECUTOR.register(chat.coordinator, executor)
    await chat.run("/review")
    assert chat.renderer.shown == [
        "/review: id is blocked",
        "/review: it is for the model small-1; switch with /model",
    ]


@pytest.mark.parametrize(("answer", "sent"), [("Allow", 1), ("Deny", 0)])
async def test_a_command_that_requires_approval_asks_first(answer: str, sent: int) -> None:
    gated = command("deploy", requires_approval=True, approval_message="It deploys.")
    chat = Chat(gated, answer=answer)
    reply = await chat.run("/deploy")
    assert chat.answers.asked == ["Run /deploy? It deploys."]
    assert len(chat.sent) == sent
    assert reply == (None if sent else "/deploy was not allowed")


def test_commands_of_a_project_need_trust() -> None:
    commands = (command("mine"), command("theirs", scope="project"))
    assert list(Chat(*commands).commands()) == ["/mine", "/theirs"]
    chat = Chat(*commands, trusted=False)
    assert list(chat.commands()) == ["/mine"]
    [shown] = chat.renderer.shown
    assert shown.startswith("commands of a project that is not trusted are left out: /theirs;")


def test_commands_that_cannot_be_used_are_reported() -> None:
    odd, taken = command("No Spaces"), command("help")
    twice = command("review", namespace="kit", scope="git:kit")
    chat = Chat(odd, taken, twice, command("review"))
    assert chat.commands()["/review"].summary == "Does review (user)"
    assert chat.renderer.shown == [
        "./No Spaces.md: a name has lower-case letters, digits, '-' and '_' only",
        "./help.md: /help already exists",
        "kit/review.md: /review already exists",
    ]


async def test_a_module_that_fails_is_reported() -> None:
    chat = Chat(command("review"))
    COMMAND_EXECUTOR.register(chat.coordinator, Executor(error=ValueError("no template")))
    with pytest.raises(ModuleError, match="/review failed: no template"):
        await chat.run("/review")
    COMMAND_REGISTRY.register(chat.coordinator, object())
    assert chat.commands() == {}
    assert "cannot be listed" in chat.renderer.shown[-1]
