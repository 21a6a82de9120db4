"""Find the rule that decides on a call."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from amplifier_modules.hooks_approval import commands, places
from amplifier_modules.hooks_approval.config import Action, ApprovalConfig, Rule, listed
from amplifier_modules.hooks_approval.dangers import danger_in
from amplifier_modules.hooks_approval.git_config import runs_only_git
from amplifier_modules.hooks_approval.modes import Mode
from amplifier_modules.hooks_approval.reading import only_reads

EDITS = frozenset({"write_file", "edit_file", "multi_edit", "apply_patch"})
"""Tools that change the files their input names."""

_ELSEWHERE = frozenset({"task", "web_search", "web_fetch"})
"""Tools that change no file themselves; the calls of a sub-agent are decided on by its own hook."""

_CONTROLS = frozenset({".git", ".amplifier", ".envrc", ".vscode", ".idea", ".husky"})
"""Names whose contents run without being called."""

_CHANGE_ONE_FILE = frozenset({"write_file", "edit_file"})
"""Tools whose input has, in addition to the file, only its new content."""

_COMMAND_KEYS = ("command", "cmd")
_FOLDER_KEYS = frozenset({"working_directory", "working_dir", "cwd"})
_SHOWN_PATTERNS = 10


class Call:
    """A tool call, parsed for the rules.

    Attributes:
        tool: The tool's name.
        values: Its input.
        base: The session's working directory, links followed.
        places: The paths it names; empty if they cannot be read (see `unclear`).
        command: The shell command in it, if any.
        words: The command's words, if it is plain.
        unclear: Why the call cannot be judged, as `it …`; no rule allows such a call.
    """

    def __init__(self, tool: str, values: Mapping[str, Any], base: str) -> None:
        self.tool = tool
        self.values = values
        self.base = base
        self.places: list[places.Place] = []
        self.command: str | None = None
        self.words: list[str] | None = None
        self.unclear: str | None = None
        try:
            self.places = places.places_in(values, base)
        except (ValueError, OSError) as error:
            self.unclear = f"its paths cannot be read: {error}"
        self._read_command()

    @property
    def changes_one_file(self) -> bool:
        """Whether the call is identified by the file it changes."""
        return self.tool in _CHANGE_ONE_FILE and len(self.places) == 1

    @property
    def edits_inside(self) -> bool:
        """Whether the call changes only files in the working directory that do not run by themselves."""
        return (
            self.tool in EDITS
            and self.unclear is None
            and bool(self.places)
            and all(
                places.is_below(place.real, self.base)
                and _CONTROLS.isdisjoint(
                    os.path.relpath(place.real, self.base).casefold().split("/")
                )
                for place in self.places
            )
        )

    @property
    def runs_elsewhere(self) -> bool:
        """Whether a command would run outside the working directory."""
        try:
            return not all(places.is_below(folder, self.base) for folder in self.folders)
        except (TypeError, ValueError):
            return True

    @property
    def folders(self) -> list[str]:
        """Where a command runs: the folders the call names, or else the working directory.

        Raises:
            TypeError: One of them is not text.
            ValueError: One contains a NUL character.
        """
        given = [self.values[key] for key in _FOLDER_KEYS if key in self.values]
        if not all(isinstance(folder, str) for folder in given):
            raise TypeError("a folder is not text")
        return [places.place(folder, self.base).real for folder in given] or [self.base]

    def _read_command(self) -> None:
        given = [self.values[key] for key in _COMMAND_KEYS if key in self.values]
        if not given:
            if self.tool == "bash":
                self.unclear = "it has no command"
            return
        if len(given) > 1 or not isinstance(given[0], str):
            self.unclear = "its command is not text"
            return
        self.command = given[0]
        try:
            self.words = commands.words_of(self.command)
        except commands.Unclear as error:
            self.unclear = str(error)


class Verdict(NamedTuple):
    """The decision on a call.

    Attributes:
        by: The rule or setting that decided, such as ``rule 2`` or ``default``.
        why: The reason, for model and user; None if there is none.
        rule: The address of the rule; None if no rule decided.
    """

    action: Action
    by: str
    why: str | None = None
    rule: tuple[str, int] | None = None


_RULE_NAMES = {"approvals": "approvals rule", "rules": "rule"}


class Policy(NamedTuple):
    """What decides on calls.

    Attributes:
        config: The module's settings.
        approvals: The rules of the plan, checked before those of the settings.
    """

    config: ApprovalConfig
    approvals: Sequence[Rule] = ()

    def rules(self) -> Iterator[tuple[tuple[str, int], Rule]]:
        """All rules in order, each with its address."""
        for key, rules in (("approvals", self.approvals), ("rules", self.config.rules)):
            for number, rule in enumerate(rules):
                yield (key, number), rule


def judge(policy: Policy, call: Call, mode: Mode) -> Verdict:
    """Judge a call by the first rule that matches, otherwise the mode, otherwise the default."""
    config = policy.config
    verdict = next(
        (
            Verdict(rule.action, f"{_RULE_NAMES[at[0]]} {at[1] + 1}", rule.reason, at)
            for at, rule in policy.rules()
            if _selects(rule, call)
        ),
        None,
    )
    if verdict is not None and verdict.action == "deny":
        return verdict
    reads = _reads(config, call)
    if mode == "read-only" and not reads and call.tool not in _ELSEWHERE:
        return Verdict("deny", "mode read-only", "the session is read-only")
    if verdict is not None:
        return verdict
    if reads:
        return Verdict("allow", "read_only")
    return _judged_by_mode(config, call, mode)


def _judged_by_mode(config: ApprovalConfig, call: Call, mode: Mode) -> Verdict:
    if mode in ("edits", "auto") and call.edits_inside:
        return Verdict("allow", f"mode {mode}")
    if mode == "auto" and config.default != "deny":
        danger = _danger(call)
        return Verdict("ask", "mode auto", danger) if danger else Verdict("allow", "mode auto")
    if config.default == "allow" and call.unclear is not None:
        return Verdict("ask", "unclear", call.unclear)
    return Verdict(config.default, "default", call.unclear)


def _reads(config: ApprovalConfig, call: Call) -> bool:
    """Whether a call changes nothing; in doubt, no."""
    if call.tool in config.read_only:
        return call.unclear is None
    return (
        call.tool == "bash"
        and call.command is not None
        and not call.runs_elsewhere
        and only_reads(call.command)
        and ("git" not in call.command or all(map(runs_only_git, call.folders)))
    )


def _danger(call: Call) -> str | None:
    """Why a call is asked about in the mode `auto`; None if it is not."""
    if call.command is not None:
        if call.runs_elsewhere:
            return "it runs outside the working directory"
        return danger_in(call.command)
    if call.tool in EDITS:
        return "it changes files outside the working directory, or that control what runs"
    return call.unclear


def allowances(policy: Policy, tool: str) -> str:
    """What rules allow for a tool, as text for the model; empty if nothing."""
    found: list[str] = []
    for _, rule in policy.rules():
        if rule.action != "allow" or not _names(rule, tool):
            continue
        parts = [f"`{pattern}`" for pattern in listed(rule.command)]
        inside = ", ".join(f"`{pattern}`" for pattern in listed(rule.path))
        text = " or ".join(parts)
        if inside:
            text = f"{text} in {inside}" if text else f"paths {inside}"
        found.append(text or "any single plain call")
    return "; ".join(found[:_SHOWN_PATTERNS])


def _names(rule: Rule, tool: str) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in listed(rule.tool))


def _selects(rule: Rule, call: Call) -> bool:
    if not _names(rule, call.tool):
        return False
    return _is_allowed_by(rule, call) if rule.action == "allow" else _is_caught_by(rule, call)


def _is_allowed_by(rule: Rule, call: Call) -> bool:
    """Whether all of the call matches; in doubt, no."""
    if call.unclear is not None:
        return False
    if rule.command is not None:
        words = call.words
        if words is None:
            return False
        if not any(commands.matches(words, pattern) for pattern in listed(rule.command)):
            return False
    if rule.path is None:
        # A command rule applies inside the project, not where the command may mean something else.
        return call.command is None or not call.runs_elsewhere
    patterns = listed(rule.path)
    return bool(call.places) and all(
        any(places.matches(place.real, pattern, call.base) for pattern in patterns)
        for place in call.places
    )


def _is_caught_by(rule: Rule, call: Call) -> bool:
    """Whether any part of the call matches; in doubt, yes."""
    if rule.command is not None and not any(
        _may_run(call, pattern) for pattern in listed(rule.command)
    ):
        return False
    return rule.path is None or any(
        places.matches(path, pattern, call.base, loosely=True)
        for pattern in listed(rule.path)
        for place in call.places
        for path in place
    )


def _may_run(call: Call, pattern: str) -> bool:
    if call.command is None:
        return False
    if call.words is None:
        return commands.may_contain(call.command, pattern)
    program = call.words[0]
    short = [program.rsplit("/", 1)[-1], *call.words[1:]]
    return commands.matches(call.words, pattern) or commands.matches(short, pattern)
