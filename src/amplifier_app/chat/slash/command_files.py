"""Slash commands that a module reads from files, as the published tool-slash-command does: prompts with arguments.

The module lists them in the capability `slash_command_registry`; `slash_command_executor` makes a prompt of
one and may run commands for it.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING, Any

from amplifier_app.base.errors import ModuleError
from amplifier_app.base.sanitize import one_line
from amplifier_app.chat.slash.registry import COMMAND_NAME, FROM_FILES, Chat, Reply, SlashCommand
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_support.session_capabilities import COMMAND_EXECUTOR, COMMAND_REGISTRY

if TYPE_CHECKING:
    from amplifier_app.runtime.session import OpenSession

_ALLOW = "Allow"
_APPROVAL_SECONDS = 300.0


def file_commands(
    session: OpenSession, taken: Collection[str], renderer: Renderer
) -> dict[str, SlashCommand]:
    """Return the commands of files by name; report those that cannot be used.

    Args:
        session: The session. Commands of a project that is not trusted are left out.
        taken: Names of other commands.
        renderer: Shows warnings.
    """
    coordinator = session.session.coordinator
    registry, executor = COMMAND_REGISTRY.of(coordinator), COMMAND_EXECUTOR.of(coordinator)
    if registry is None or executor is None:
        return {}
    commands: dict[str, SlashCommand] = {}
    untrusted: list[str] = []

    def warn(text: str) -> None:
        renderer.notice(text, "warning", "chat")

    try:
        # Those of no namespace first.
        listed = sorted(registry.list_commands(), key=lambda one: str(one.namespace or ""))
        for one in listed:
            command = _command(one, executor)
            if getattr(one, "scope", "") == "project" and session.plan.project is None:
                untrusted.append(command.name)
            elif not COMMAND_NAME.fullmatch(command.name[1:]):
                warn(f"{one.source_file}: a name has lower-case letters, digits, '-' and '_' only")
            elif command.name in taken or command.name in commands:
                warn(f"{one.source_file}: {command.name} already exists")
            else:
                commands[command.name] = command
    # A module may raise anything; the chat works without its commands.
    except Exception as error:
        text = one_line(str(error), 200) or type(error).__name__
        warn(f"the commands of slash_command_registry cannot be listed: {text}")
    if untrusted:
        names = ", ".join(untrusted)
        warn(
            f"commands of a project that is not trusted are left out: {names}; see 'amplifier trust'"
        )
    return commands


def _command(one: Any, executor: Any) -> SlashCommand:
    name, about = f"/{one.name}", one.metadata

    async def run(chat: Chat, argument: str) -> Reply:
        if about.requires_approval and not await _is_allowed(chat, one):
            return f"{name} was not allowed"
        try:
            result = await executor.execute_full(one.name, argument, one.namespace)
        # A module may raise anything; the chat continues.
        except Exception as error:
            text = one_line(str(error), 400) or type(error).__name__
            raise ModuleError(f"{name} failed: {text}") from error
        notes = [*(result.warnings or ())]
        if result.model_override:
            notes.append(f"it is for the model {result.model_override}; switch with /model")
        for note in notes:
            chat.renderer.notice(f"{name}: {note}", "warning", "chat")
        # It may have the output of commands, whose mentions the user has not written.
        chat.send(str(result.prompt), adds_files=False)
        return None

    summary = " ".join(filter(None, (one_line(str(about.description)), _origin(one))))
    return SlashCommand(name, summary, run, _usage(about.argument_hint), module=FROM_FILES)


def _origin(one: Any) -> str:
    names = (getattr(one, "scope", ""), one.namespace)
    return f"({':'.join(dict.fromkeys(str(name) for name in names if name))})"


def _usage(hint: Any) -> str:
    # YAML reads '[FILE]' as a list.
    text = " ".join(f"[{word}]" for word in hint) if isinstance(hint, list) else str(hint or "")
    return one_line(text, 40)


async def _is_allowed(chat: Chat, one: Any) -> bool:
    about = one.metadata.approval_message or one.metadata.description
    question = f"Run /{one.name}? {one_line(str(about), 400)}"
    approvals: Any = chat.session.session.coordinator.approval_system
    options = [_ALLOW, "Deny"]
    answer = await approvals.request_approval(question, options, _APPROVAL_SECONDS, "deny")
    return answer == _ALLOW
