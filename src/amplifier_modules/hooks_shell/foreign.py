"""Hooks in the formats of Claude Code and Codex: they see the names and inputs of the program they were written for.

{Event: [{matcher: REGEX, hooks: [{type: command, command: …, args: […], timeout: SECONDS}]}]}
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, cast

from amplifier_core.llm_errors import ConfigurationError
from amplifier_modules._shared.privacy import PlainCopy
from amplifier_modules.hooks_shell.shell_hook import Answer, InvalidAnswer, ShellHook
from amplifier_support.fields import to_mapping
from amplifier_support.files import open_regular
from amplifier_support.project_folders import EVENTS, TOOLS

Format = Literal["claude", "codex"]

_KEYS = {
    "task": {"agent": "subagent_type", "instruction": "prompt"},
    "grep": {"ignore_case": "-i", "context": "-C", "limit": "head_limit"},
    "bash_output": {"id": "bash_id"},
    "bash_kill": {"id": "shell_id"},
    "skill": {"name": "skill"},
}
"""Keys of inputs that Claude Code has other names for."""
_PATHS = ("file_path", "path")
_MILLISECONDS = 1000
"""Of the time limit of a command, which is in seconds here."""

_PATCHES = ("write_file", "edit_file")
"""Tools that are patches in Codex."""

_TAKES_TEXT = ("UserPromptSubmit", "SessionStart")
"""Events whose plain output is for the model."""

_SOURCES = {"session:start": "startup", "session:resume": "resume"}
_PLAIN = re.compile(r"[A-Za-z0-9_|]+")
"""Matchers that are names; both programs search for any other one in the name of the tool."""
_ASYNC = re.compile(r'\{"async":\s*true')
ROOTS = ("CLAUDE_PLUGIN_ROOT", "PLUGIN_ROOT")
PROJECT = "CLAUDE_PROJECT_DIR"
_MAX_FILE = 1024 * 1024


class ForeignHook(ShellHook):
    """A hook of another program.

    Attributes:
        format: The program.
        on: The event by its name there.
        matcher: Regular expression for the name of the tool there; empty for every tool.
    """

    format: Format
    on: str
    matcher: str = ""

    def means_event(self, event: str) -> bool:
        if self.on != "SessionStart":
            return super().means_event(event)
        source = _SOURCES.get(event)
        return source is not None and bool(re.fullmatch(self.matcher or ".*", source))

    def means_data(self, data: Mapping[str, Any]) -> bool:
        if self.on in ("SessionStart", "SessionEnd") and data.get("parent_id"):
            return False
        tool = data.get("tool_name")
        if not self.on.endswith(("ToolUse", "Failure")) or not self.matcher:
            return True
        names = _names(str(tool), self.format)
        if _PLAIN.fullmatch(self.matcher):
            return not set(names).isdisjoint(self.matcher.split("|"))
        return any(re.search(self.matcher, name) for name in names)

    def write_input(
        self, event: str, data: Mapping[str, Any], session_id: str, folder: str
    ) -> dict[str, Any]:
        data = PlainCopy().of(data)
        fields: dict[str, Any] = {
            "session_id": session_id,
            "transcript_path": "",
            "cwd": folder,
            "hook_event_name": self.on,
            "permission_mode": "default",
        }
        if "tool_name" in data:
            name, values = to_foreign(
                str(data["tool_name"]), data.get("tool_input"), self.format, folder
            )
            fields |= {"tool_name": name, "tool_input": values}
            fields |= {"tool_use_id": data.get("tool_call_id") or ""}
            if event != "tool:pre":
                fields["tool_response"] = data.get("result", data.get("error"))
        for key, value in (
            ("prompt", data.get("prompt")),
            ("message", data.get("message")),
            ("source", _SOURCES.get(event)),
            ("stop_hook_active", data.get("is_continued") is True),
            ("trigger", "auto"),
        ):
            if key in _MORE.get(self.on, ()):
                fields[key] = value
        return fields

    def parse(self, output: bytes, data: Mapping[str, Any]) -> Answer:
        text = output.decode("utf-8", "replace").strip()
        if not text.startswith("{"):
            return Answer(context=text or None) if self.on in _TAKES_TEXT else Answer()
        try:
            # Of a hook that goes on in the background, the first line alone is the answer.
            fields: Any = json.loads(text if not _ASYNC.match(text) else text.partition("\n")[0])
        except (ValueError, RecursionError) as error:
            raise InvalidAnswer(f"it printed text that is not JSON: {text[:80]!r}") from error
        return self._to_answer(to_mapping(fields), data)

    def refuse(self, reason: str) -> Answer:
        if self.on in ("PreToolUse", "UserPromptSubmit"):
            return Answer("deny", reason or None)
        if self.on == "Stop":
            return Answer(context=reason or "Go on.", goes_on=True)
        # The call has ended: what it says is for the model.
        return Answer(context=reason or None)

    def _to_answer(self, fields: Mapping[str, Any], data: Mapping[str, Any]) -> Answer:
        specific: Any = fields.get("hookSpecificOutput") or {}
        if not isinstance(specific, dict):
            raise InvalidAnswer("its 'hookSpecificOutput' is not an object")
        specific = cast("dict[str, Any]", specific)
        message = _text(fields.get("systemMessage"))
        reason = _text(specific.get("permissionDecisionReason")) or _text(fields.get("reason"))
        context = _text(specific.get("additionalContext"))
        if fields.get("continue") is False:
            if self.on == "Stop":
                return Answer(message=message)
            blocked = self.refuse(_text(fields.get("stopReason")) or reason or "")
            return blocked._replace(message=message)
        decision = specific.get("permissionDecision") or fields.get("decision")
        if decision in ("deny", "block"):
            return self.refuse(reason or "")._replace(message=message)
        if decision == "ask":
            if specific.get("updatedInput") is not None:
                raise InvalidAnswer("it asks about a call that it changes, which is not supported")
            return Answer("ask", reason, message=message)
        if decision not in (None, "allow", "approve", "defer"):
            raise InvalidAnswer(f"its decision is {decision!r}, which is none")
        changed = self._changes(specific, data)
        return Answer(context=context, data=changed, message=message)

    def _changes(
        self, specific: Mapping[str, Any], data: Mapping[str, Any]
    ) -> dict[str, Any] | None:
        values = specific.get("updatedInput")
        if self.on == "PreToolUse" and values is not None:
            if not isinstance(values, dict):
                raise InvalidAnswer("its 'updatedInput' is not an object")
            tool = str(data.get("tool_name"))
            if self.format == "codex" and tool in _PATCHES:
                raise InvalidAnswer("it changes a patch, which cannot be done here")
            return {"tool_input": to_own(tool, cast("dict[str, Any]", values))}
        output = specific.get("updatedToolOutput")
        if self.on == "PostToolUse" and output is not None:
            return {"result": {**to_mapping(data.get("result")), "output": output}}
        return None


_MORE = {
    "UserPromptSubmit": ("prompt",),
    "Notification": ("message",),
    "SessionStart": ("source",),
    "Stop": ("stop_hook_active",),
    "PreCompact": ("trigger",),
}
"""Fields of single events."""


def read_file(path: str) -> Mapping[str, Any]:
    """Return the hooks in a settings file of another program; none if there is no file, or they are disabled.

    Raises:
        ConfigurationError: The file is unreadable.
    """
    try:
        with open(open_regular(Path(path), os.O_RDONLY), "rb") as file:
            data = file.read(_MAX_FILE + 1)
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise ConfigurationError(
            f"cannot read the hooks in {path}: {error.strerror or error}"
        ) from error
    try:
        settings: Any = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise ConfigurationError(f"the hooks in {path} are not valid JSON: {error}") from error
    if not isinstance(settings, dict) or len(data) > _MAX_FILE:
        raise ConfigurationError(f"the hooks in {path} are not a JSON object of at most 1 MiB")
    fields = cast("dict[str, Any]", settings)
    hooks = fields.get("hooks", {})
    if not isinstance(hooks, dict):
        raise ConfigurationError(f"'hooks' in {path} is not a JSON object")
    return {} if fields.get("disableAllHooks") is True else cast("dict[str, Any]", hooks)


def read_hooks(
    hooks: Mapping[str, Any], form: Format, *, variables: dict[str, str], problems: list[str]
) -> Iterator[ForeignHook]:
    """The hooks of one document.

    Args:
        hooks: Event → list of matchers.
        form: The program they were written for.
        variables: Environment variables to set for them, also expanded in `args`.
        problems: Gets a line for each that cannot be used.
    """
    for on, matchers in hooks.items():
        if on not in EVENTS:
            problems.append(f"{on}: there is no such event here")
            continue
        for matcher in cast("list[Any]", matchers) if isinstance(matchers, list) else []:
            pattern = str(to_mapping(matcher).get("matcher") or "")
            pattern = "" if pattern == "*" else pattern
            try:
                re.compile(pattern)
            except re.error as error:
                problems.append(f"{on}: {pattern!r} is not a regular expression: {error}")
                continue
            entries: Any = to_mapping(matcher).get("hooks")
            for each in cast("list[Any]", entries) if isinstance(entries, list) else []:
                hook = _hook(on, pattern, to_mapping(each), form, variables)
                if hook is None:
                    problems.append(f"{on}: only hooks with a command are supported")
                else:
                    yield hook


def _hook(
    on: str, matcher: str, fields: Mapping[str, Any], form: Format, variables: dict[str, str]
) -> ForeignHook | None:
    command: Any = fields.get("command")
    if fields.get("type", "command") != "command" or not isinstance(command, str):
        return None
    arguments: Any = fields.get("args")
    if isinstance(arguments, list):
        command = [command, *(str(text) for text in cast("list[Any]", arguments))]
        for name, value in variables.items():
            command = [text.replace(f"${{{name}}}", value) for text in command]
    timeout: Any = fields.get("timeout")
    return ForeignHook(
        event=EVENTS[on],
        command=cast("str | list[str]", command),
        timeout=timeout if isinstance(timeout, (int, float)) and timeout > 0 else 60,
        environment=variables,
        format=form,
        on=on,
        matcher=matcher,
    )


# -- tools -------------------------------------------------------------------------------


def to_foreign(tool: str, values: Any, form: Format, folder: str) -> tuple[str, dict[str, Any]]:
    """The name and the input of a call as another program has them.

    Args:
        tool: The tool here.
        values: The input here.
        form: The other program.
        folder: The working directory; paths are absolute in Claude Code.
    """
    fields = to_mapping(values)
    if form == "codex" and tool in _PATCHES:
        return "apply_patch", {"command": _patch(tool, fields)}
    keys = _KEYS.get(tool, {})
    theirs = {keys.get(key, key): value for key, value in fields.items()}
    for key in _PATHS:
        if isinstance(theirs.get(key), str):
            theirs[key] = os.path.join(folder, theirs[key])
    if tool == "bash" and isinstance(theirs.get("timeout"), (int, float)):
        theirs["timeout"] = theirs["timeout"] * _MILLISECONDS
    name = "MultiEdit" if tool == "edit_file" and "edits" in theirs else _names(tool, form)[0]
    return name, theirs


def to_own(tool: str, values: Mapping[str, Any]) -> dict[str, Any]:
    """Return the input of a call here, given the input in the form of another program."""
    keys = {theirs: ours for ours, theirs in _KEYS.get(tool, {}).items()}
    own = {keys.get(key, key): value for key, value in values.items()}
    if tool == "bash" and isinstance(own.get("timeout"), (int, float)):
        own["timeout"] = own["timeout"] / _MILLISECONDS
    return own


def _names(tool: str, form: Format) -> tuple[str, ...]:
    """The names that a matcher may call a tool by, the proper one first."""
    if tool.startswith("mcp_"):
        return (f"mcp__{tool[4:].replace('_', '__', 1)}",)
    name = TOOLS.get(tool, tool)
    if form == "codex" and tool in _PATCHES:
        return ("apply_patch", "Edit", "Write")
    if tool == "edit_file":
        return (name, "MultiEdit")
    return (name,)


def _patch(tool: str, values: Mapping[str, Any]) -> str:
    """A call that writes a file as a patch in Codex's form."""
    path = values.get("file_path", "")
    if tool == "write_file":
        lines = [f"*** Add File: {path}", *_marked("+", values.get("content"))]
    else:
        edits: Any = values.get("edits") or [values]
        lines = [f"*** Update File: {path}"]
        for edit in edits:
            fields = to_mapping(edit)
            lines += ["@@", *_marked("-", fields.get("old_string"))]
            lines += _marked("+", fields.get("new_string"))
    return "\n".join(["*** Begin Patch", *lines, "*** End Patch"])


def _marked(mark: str, text: Any) -> list[str]:
    return [f"{mark}{line}" for line in str(text or "").splitlines()]


def _text(value: Any) -> str | None:
    return value if isinstance(value, str) and value.strip() else None
