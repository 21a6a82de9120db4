"""Find the rule that decides on a call, and the calls that the mode `auto` still asks about.

The latter are operations that are hard to undo or leave the machine, anywhere in a command. Their list
protects against accidents, not against a script that hides what it does.
"""

from __future__ import annotations

import glob
import os
import re
import unicodedata
from collections.abc import Iterable, Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from functools import cached_property
from itertools import islice
from typing import Any, cast
from urllib.parse import urlsplit

from amplifier_modules._shared.module.config import listed
from amplifier_modules.hooks_approval import commands
from amplifier_modules.hooks_approval.config import PROPOSE, Action, ApprovalConfig, Mode, Rule
from amplifier_modules.hooks_approval.invocations import UNKNOWN, invocations, words_in
from amplifier_modules.hooks_approval.read_only_commands import (
    Programs,
    only_reads,
    reads_below,
    runs_only_git,
    segments_read,
    takes_only_data,
)
from amplifier_support.files import is_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.path_patterns import fits, split_pattern
from amplifier_support.run_later import runs_later
from amplifier_support.session_capabilities import MentionResolver
from amplifier_support.text import lazy_pattern

# -- the paths a tool call names, and whether they match a pattern -----------------------


_PATH_KEYS = """
    path paths file files file_path file_paths filepath filename directory dir folder cwd
    working_directory working_dir source destination src dst from to old_path new_path target
    notebook_path
"""
_KEYS = frozenset(_PATH_KEYS.split())
_WILD = frozenset("*?[")
_PRINTERS = "echo true pwd whoami id uname seq sleep tr date basename dirname which ps"
_WITHOUT_PATHS = frozenset(_PRINTERS.split())
_WITH_PATTERN = frozenset(["grep", "egrep", "fgrep", "rg", "jq"])
# The first word is then not a pattern.
_PATTERN_ELSEWHERE = lazy_pattern(r"-[^-]*[efL]|--(reg|fi|from)")
_EXPANDED = lazy_pattern(r"[*?\[{]")
# A wildcard may match `..`; a home directory, a sequence or braces were not expanded; a slow search.
_IS_UNCERTAIN = lazy_pattern(r"(^|/)\.[^/]*[*?\[]|^~|[{}]|([*?\[][^/]*/.*){4}")
_MAX_EXPANDED = 1000


class Place(NamedTuple):
    """A path a call names: resolved, and as written, both absolute."""

    real: str
    written: str


def _places_in(
    values: Mapping[str, Any], base: str, mentions: MentionResolver | None = None
) -> list[Place]:
    """The paths in a tool's input, each once, also inside lists and objects.

    For `@NAME:path`, these are the path as it is written and the file that `mentions` finds.

    Raises:
        ValueError: A path contains a NUL character.
    """
    places: list[Place] = []
    for key, value in values.items():
        for path in _paths_in(value, named=key.lower() in _KEYS):
            places.append(place(path, base))
            if path.startswith("@") and mentions is not None:
                file = mentions.resolve(path)
                places += [] if file is None else [place(str(file), base)]
    return list(dict.fromkeys(places))


def _paths_in(value: Any, *, named: bool) -> Iterator[str]:
    if isinstance(value, str):
        if named:
            yield value
    elif isinstance(value, list):
        for item in cast("list[Any]", value):
            yield from _paths_in(item, named=named)
    elif isinstance(value, dict):
        for key, item in cast("dict[Any, Any]", value).items():
            yield from _paths_in(item, named=str(key).lower() in _KEYS)


def _places_in_words(words: Iterable[str], base: str) -> Iterator[Place]:
    """The paths that words of a command may mean, as a whole or in part."""
    for word in words:
        for text in _path_texts(word):
            if text.isprintable():
                yield place(_without_tilde(text, base), base)


def _places_read(
    segments: Sequence[Sequence[str]], start: str, *, expands: bool
) -> list[Place] | None:
    """The paths that a command that only reads names; None if that is uncertain.

    Args:
        segments: The words of its programs.
        start: Where it starts.
        expands: Whether wildcards and braces in the words are expanded.
    """
    starts = [start]
    places: list[Place] = []
    for program, *arguments in segments:
        if program in _WITHOUT_PATHS:
            continue
        if program in _WITH_PATTERN and not any(map(_PATTERN_ELSEWHERE.match, arguments)):
            first = next((at for at, word in enumerate(arguments) if word[:1] != "-"), None)
            if first is not None and not (expands and _EXPANDED.search(arguments[first])):
                arguments = arguments[:first] + arguments[first + 1 :]
        texts = [_without_tilde(text, start) for word in arguments for text in _path_texts(word)]
        if expands:
            texts = [expanded for text in texts for expanded in _without_braces(text)]
            if any(map(_IS_UNCERTAIN.search, texts)):
                return None
        elif any(text.startswith("~") for text in texts):
            return None
        for folder in starts:
            for text in texts:
                wild = expands and not _WILD.isdisjoint(text)
                paths = glob.iglob(text, root_dir=folder) if wild else ()
                expanded = list(islice(paths, _MAX_EXPANDED + 1))
                if len(expanded) > _MAX_EXPANDED:
                    return None
                places += [place(path, folder) for path in (text, *expanded)]
        if program == "cd":
            if len(texts) != 1 or not _WILD.isdisjoint(texts[0]) or texts[0].startswith("-"):
                return None
            starts += [os.path.normpath(os.path.join(folder, texts[0])) for folder in starts]
    return places


def _without_tilde(text: str, base: str) -> str:
    return f"{base}{text[2:]}" if text.startswith("~+") else os.path.expanduser(text)


def _path_texts(word: str) -> Iterator[str]:
    """A word, the value of an option in it, and a path in a commit of git."""
    yield word
    if "=" in word:
        yield word.partition("=")[2]
    if word.startswith("-") and not word.startswith("--"):
        yield from (word[at:] for at in range(2, min(len(word), 8)) if word[at:] != "/")
    for at, character in enumerate(word):
        if character == ":":
            yield word[at + 1 :]


def _without_braces(text: str) -> list[str]:
    inner = re.search(r"\{([^{}]*,[^{}]*)\}", text)
    if inner is None or text.count("{") > 3:
        return [text]
    around = text[: inner.start()], text[inner.end() :]
    return [brace for part in inner[1].split(",") for brace in _without_braces(part.join(around))]


def place(path: str, base: str) -> Place:
    """Resolve `path` from `base`, following links and `..`.

    Raises:
        ValueError: It contains a NUL character.
    """
    if "\0" in path:
        raise ValueError("a path contains a NUL character")
    written = os.path.join(base, path)
    return Place(os.path.realpath(written), os.path.normpath(written))


def matches(path: str, pattern: str, base: str, *, loosely: bool = False) -> bool:
    """Return True if an absolute path matches a pattern.

    Args:
        path: The path.
        pattern: Relative to `base`, absolute, or starting with `~/`.
        base: The working directory.
        loosely: Ignore case, as some file systems do.
    """
    # Links are resolved in the part without wildcards, as in paths.
    start, rest = split_pattern(os.path.join(base, os.path.expanduser(pattern)))
    full_pattern = "/".join([start, *rest])
    if loosely:
        path, full_pattern = path.casefold(), full_pattern.casefold()
    return fits(path, full_pattern)


# -- find the rule that decides on a call ------------------------------------------------


_MAX_WORDS = 500

_ALWAYS = """
    sudo doas su pkexec dd mkfs fdisk parted wipefs shred mount umount kill pkill killall shutdown reboot
    halt poweroff systemctl service crontab at ssh scp sftp rsync nc ncat socat telnet ftp useradd userdel
    usermod passwd chown iptables nft eval kubectl terraform aws gcloud az gh
"""
_PROGRAMS = frozenset(_ALWAYS.split())

_WITH: dict[str, str] = {
    "rm": r"-[a-zA-Z]*[rR]|--r",
    "find": r"-delete|-exec|-ok",
    "chmod": r"-[a-zA-Z]*R|--recursive",
    "curl": r"-[a-zA-Z]*[dFTX]|--(data|form|upload|json|request|post)",
    "wget": r"--(post|body|method)",
    "npm": r"publish|unpublish|login",
    "yarn": r"publish",
    "pnpm": r"publish",
    "cargo": r"publish|yank",
    "uv": r"publish",
    "twine": r"upload",
    "gem": r"push|yank",
    "docker": r"push|rm|rmi|system|volume|prune",
    "podman": r"push|rm|rmi|system|volume|prune",
    "truncate": r"",
    "base64": r"-[a-zA-Z]*[dD]|--d",
}
"""Programs that are dangerous if an argument starts with a match of the pattern."""

_GIT: dict[str, str] = {
    "push": "",
    "clean": "",
    "filter-branch": "",
    "filter-repo": "",
    "reset": r"--hard|--merge|--keep",
    "checkout": r"-f|--force|--$|\.$",
    "restore": "",
    "branch": r"-[a-zA-Z]*[DdM]|--delete|--force",
    "stash": r"drop|clear",
    "tag": r"-d|--delete|-f|--force",
    "update-ref": "",
    "reflog": r"expire|delete",
    "gc": "",
    "remote": r"add|set-url|remove|rm",
    "config": "",
    # Programs of other repositories, or named by the option.
    **dict.fromkeys(
        ("log", "show", "diff", "diff-tree", "whatchanged", "grep"),
        r"--ext|--show-si|--submo|--rec|.*%(G|\(sig)|-[^-]*O",
    ),
}
_SHELL_NAMES = "sh bash dash zsh ksh fish python python3 perl ruby node"
_SHELLS = frozenset(_SHELL_NAMES.split())
_FETCHERS = frozenset({"curl", "wget"})


def danger_in(command: str) -> str | None:
    """Why a command is dangerous, as `it …`; None if nothing in it is known to be."""
    if any(
        unicodedata.category(character)[0] == "C" and character not in "\t\n"
        for character in command
    ):
        return "it contains invisible characters"
    pieces = commands.split_roughly(command)
    candidates = [
        [piece.rsplit("/", 1)[-1].lower(), *pieces[at + 1 : at + 1 + _MAX_WORDS]]
        for at, piece in enumerate(pieces)
    ]
    runs = invocations(command)
    for words in (*candidates, *runs):
        danger = _find_danger(words[0], words[1:])
        if danger is not None:
            return danger
    if any(words[0] == UNKNOWN for words in runs):
        return "it runs a program that only the shell knows"
    names = {words[0] for words in candidates}
    if "|" in command and _FETCHERS & names and _SHELLS & names:
        return "it runs what it downloads"
    if re.search(r">\s*(/dev/(?!null|stdout|stderr|tty)|~|/etc/)", command):
        return "it writes outside the working directory"
    return None


def _find_danger(name: str, arguments: Sequence[str]) -> str | None:
    if name in _PROGRAMS or name.startswith("mkfs."):
        return f"it runs '{name}'"
    if name == "git" and UNKNOWN in "".join(arguments[:1]):
        return "it calls git in a way that is not understood"
    if name == "git" and (subcommand := _git_danger(arguments)):
        return f"it runs 'git {subcommand}'"
    if name in _WITH and any(re.match(_WITH[name], word) for word in arguments):
        return f"it runs '{name}' with arguments that delete, send or cannot be undone"
    return None


def _git_danger(words: Sequence[str]) -> str | None:
    """The subcommand in git's arguments, after its own options, if it is dangerous."""
    for at, word in enumerate(words):
        if word in _GIT:
            pattern = _GIT[word]
            dangerous = (
                any(re.match(pattern, argument) for argument in words[at + 1 :]) or not pattern
            )
            return word if dangerous else None
        if not word.startswith("-") and (at == 0 or words[at - 1] not in ("-C", "-c")):
            return None
    return None


EDITS = frozenset({"write_file", "edit_file", "multi_edit", "apply_patch"})
"""Tools that change the files their input names."""

_ELSEWHERE = frozenset({"task", "web_search", "web_fetch"})
"""Tools that do not change files themselves; a sub-agent has its own hook for its calls."""

_CHANGE_ONE_FILE = frozenset({"write_file", "edit_file"})
"""Tools whose input has, in addition to the file, only its new content."""

_SERVER_SKILL = lazy_pattern(r"mcp_.*_skill(_[0-9a-f]{8})?")
"""The tool that loads skills of an MCP server, perhaps with a digest that makes its name unique."""

_COMMAND_KEYS = ("command", "cmd")
_FOLDER_KEYS = frozenset({"working_directory", "working_dir", "cwd"})
_SHOWN_PATTERNS = 10

_READING: Mapping[str, str] = {
    "read-only": "the session is read-only",
    PROPOSE: f"nothing is changed before the user accepts a proposal, which the tool {PROPOSE} hands in",
}
"""Why a mode denies what could change something."""

DEFAULT = "default"
"""`by` of a decision that neither a rule nor the mode made."""
READS = "read_only"
"""`by` of a call that is allowed because it changes nothing."""


class Call:
    """A tool call, parsed for the rules.

    Attributes:
        tool: The tool's name.
        values: Its input.
        base: The session's working directory, links followed.
        start: Where the paths in it start, and where a command runs that names no folder.
        is_sandboxed: Whether the sandbox restricts its command.
        ignores_sandbox: Whether the session has a sandbox that its tool does not use for commands.
        plan_files: The files of the session's plan, links followed.
        delegates: Whether it only gives work to sub-agents, whose own calls are decided on.
        places: The paths it names; empty if they cannot be read (see `unclear`).
        command: The shell command in it, if any.
        words: The command's words, if it is plain.
        unclear: Why the call cannot be judged, as `it …`; no rule allows such a call.
    """

    def __init__(
        self,
        tool: str,
        values: Mapping[str, Any],
        base: str,
        start: str | None = None,
        *,
        is_sandboxed: bool = False,
        ignores_sandbox: bool = False,
        mentions: MentionResolver | None = None,
        plan_files: Sequence[str] = (),
        delegates: bool = False,
    ) -> None:
        self.tool = tool
        self.values = values
        self.base = base
        self.start = start or base
        self.is_sandboxed = is_sandboxed
        self.ignores_sandbox = ignores_sandbox
        self.plan_files = plan_files
        self.delegates = delegates
        self.places: list[Place] = []
        self.command: str | None = None
        self.words: list[str] | None = None
        self.unclear: str | None = None
        try:
            self.places = _places_in(values, self.start, mentions)
        except (ValueError, OSError) as error:
            self.unclear = f"its paths cannot be read: {error}"
        self._read_command()
        if self.command is not None and not self.places and self.start != base:
            # It names no folder, but runs in another one.
            self.places = [Place(self.start, self.start)]

    @property
    def changes_one_file(self) -> bool:
        """True if the call is identified by the file it changes."""
        return self.tool in _CHANGE_ONE_FILE and len(self.places) == 1

    @property
    def edits_inside(self) -> bool:
        """True if the call changes only files in the working directory that do not run by themselves."""
        return (
            self.tool in EDITS
            and self.unclear is None
            and bool(self.places)
            and all(
                is_below(place.real, self.base)
                and place.real not in self.plan_files
                and not runs_later(place.real, self.base)
                for place in self.places
            )
        )

    @property
    def runs_elsewhere(self) -> bool:
        """True if a command would run outside the working directory."""
        folders = self.folders
        return folders is None or not all(is_below(folder, self.base) for folder in folders)

    @property
    def runs_in_base(self) -> bool:
        """True if a command runs in the working directory itself."""
        folders = self.folders
        return folders is not None and all(folder == self.base for folder in folders)

    @cached_property
    def folders(self) -> list[str] | None:
        """Return the folders of a command: those the call names, or else where the last one ended.

        None if one of them is not a path.
        """
        folders = [self.values[key] for key in _FOLDER_KEYS if key in self.values]
        try:
            return [place(folder, self.start).real for folder in folders] or [self.start]
        except (TypeError, ValueError):
            return None

    @cached_property
    def named(self) -> list[Place]:
        """The paths that the words of its command may mean."""
        words: Iterable[str] = ()
        if self.words is not None and takes_only_data(self.words):
            words = self.words
        elif self.command is not None:
            words = words_in(self.command)
        known = dict.fromkeys(words)
        folders = self.folders or [self.start]
        return [p for folder in folders for p in _places_in_words(known, folder)]

    def _read_command(self) -> None:
        values = [self.values[key] for key in _COMMAND_KEYS if key in self.values]
        if not values:
            if self.tool == "bash":
                self.unclear = "it has no command"
            return
        if len(values) > 1 or not isinstance(values[0], str):
            self.unclear = "its command is not text"
            return
        self.command = values[0]
        try:
            self.words = commands.split_words(self.command)
        except commands.Unclear as error:
            self.unclear = str(error)


class Verdict(NamedTuple):
    """The decision on a call.

    Attributes:
        by: The rule or setting that decided, such as ``rule 2`` or ``default``.
        why: The reason, for model and user; None if there is none.
        rule: The address of the rule; None if no rule decided.
        changed: The input to use instead of the call's; None if it stays.
    """

    action: Action
    by: str
    why: str | None = None
    rule: tuple[str, int] | None = None
    changed: dict[str, Any] | None = None


_RULE_NAMES = {"approvals": "approvals rule", "rules": "rule"}


class Policy(NamedTuple):
    """The settings, rules and facts that decide on calls.

    Attributes:
        config: The module's settings.
        approvals: The rules of the plan, checked before those of the settings.
        programs: The known programs; None to accept every program.
    """

    config: ApprovalConfig
    approvals: Sequence[Rule] = ()
    programs: Programs | None = None

    def knows(self, names: Iterable[str], call: Call) -> bool:
        """Return True if all of these names mean known programs where a call runs; in doubt, no."""
        if self.programs is None:
            return True
        known, folders = self.programs.is_known, call.folders
        return folders is not None and all(
            known(name, folder) for name in names for folder in folders
        )

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
            Verdict(_action(rule), f"{_RULE_NAMES[at[0]]} {at[1] + 1}", rule.reason, at)
            for at, rule in policy.rules()
            if selects(policy, rule, call)
        ),
        None,
    )
    if verdict is not None and (verdict.action == "deny" or mode not in _READING):
        return verdict
    if mode == PROPOSE == call.tool:
        return Verdict("allow", f"mode {mode}")
    reads = _reads(policy, call)
    risk = _git_risk(call) if reads else None
    reads = reads and risk is None
    if mode in _READING and not reads and call.tool not in _ELSEWHERE:
        why = _READING[mode]
        return Verdict("deny", f"mode {mode}", why if risk is None else f"{why}, and {risk}")
    if verdict is not None:
        return verdict
    if reads:
        return Verdict("allow", READS)
    return _judged_by_mode(config, call, mode, risk)


def _action(rule: Rule) -> Action:
    return "allow" if rule.action == "sandboxed" else rule.action


def _judged_by_mode(config: ApprovalConfig, call: Call, mode: Mode, risk: str | None) -> Verdict:
    if mode in ("edits", "auto") and call.edits_inside:
        return Verdict("allow", f"mode {mode}")
    if mode == "auto" and config.default != "deny":
        danger = _danger(call) or risk
        return Verdict("ask", "mode auto", danger) if danger else Verdict("allow", "mode auto")
    doubt = call.unclear or risk
    if config.default == "allow" and doubt is not None:
        return Verdict("ask", "unclear", doubt)
    return Verdict(config.default, DEFAULT, doubt)


def _reads(policy: Policy, call: Call) -> bool:
    """Return True if a call changes nothing; in doubt, no."""
    if call.delegates or call.tool in policy.config.read_only:
        return call.unclear is None
    if call.tool != "bash" or call.command is None:
        return False
    folders = call.folders
    return (
        folders is not None
        and not call.runs_elsewhere
        and only_reads(call.command)
        and policy.knows((words[0] for words in segments_read(call.command)[0]), call)
        and _reads_allowed_files(policy, call, folders)
    )


def _reads_allowed_files(policy: Policy, call: Call, folders: Iterable[str]) -> bool:
    """Return True if a command that only reads stays in the working directory and off what a rule denies."""
    segments, expands = segments_read(call.command or "")
    patterns = [
        pattern
        for _, rule in policy.rules()
        if rule.action in ("ask", "deny") and rule.command is None and _names(rule, call.tool)
        for pattern in listed(rule.path)
    ]
    for folder in folders:
        places = _places_read(segments, folder, expands=expands)
        if places is None:
            return False
        for place in places:
            if place.real != os.devnull and not is_below(place.real, call.base):
                return False
            if any(matches(place.real, form, call.base, loosely=True) for form in patterns):
                return False
    starts = [
        split_pattern(os.path.join(call.base, os.path.expanduser(pattern)))[0]
        for pattern in patterns
    ]
    if not any(is_below(start, call.base) or is_below(call.base, start) for start in starts):
        return True
    # Where the sandbox hides the files, only git's copies of them are left.
    return not any(
        reads_below(words) and (words[0] == "git" or not call.is_sandboxed) for words in segments
    )


def _git_risk(call: Call) -> str | None:
    """Return the reason to ask about a call that only reads: its repository may run programs."""
    if (
        call.tool != "bash"
        or call.command is None
        or all(words[0] != "git" for words in segments_read(call.command)[0])
    ):
        return None
    if all(map(runs_only_git, call.folders or ())):
        return None
    return "the configuration of the repository can make git run other programs"


def _danger(call: Call) -> str | None:
    """Why the mode `auto` asks about a call; None if it allows the call."""
    if call.command is not None:
        if call.runs_elsewhere:
            return "it runs outside the working directory"
        if call.ignores_sandbox:
            return "it may run outside the sandbox, which its tool does not use"
        return danger_in(call.command)
    if _SERVER_SKILL.fullmatch(call.tool):
        return "it loads instructions that a server wrote"
    if call.tool in EDITS:
        return "it changes files outside the working directory, or that control what runs"
    return call.unclear


def allowances(policy: Policy, tool: str) -> str:
    """Return the allowances of rules for a tool, as text for the model; empty if there are none."""
    texts: list[str] = []
    for _, rule in policy.rules():
        if rule.action not in ("allow", "sandboxed") or not _names(rule, tool):
            continue
        parts = [f"`{pattern}`" for pattern in listed(rule.command)]
        inside = ", ".join(f"`{pattern}`" for pattern in listed(rule.path))
        text = " or ".join(parts)
        if inside:
            text = f"{text} in {inside}" if text else f"paths {inside}"
        if rule.action == "sandboxed":
            text = f"{text or 'any command'} while the sandbox is enforced"
        texts.append(text or "any single plain call")
    return "; ".join(texts[:_SHOWN_PATTERNS])


def _names(rule: Rule, tool: str) -> bool:
    return any(fnmatchcase(tool, pattern) for pattern in listed(rule.tool))


def selects(policy: Policy, rule: Rule, call: Call) -> bool:
    """Return True if a rule decides on a call."""
    if not _names(rule, call.tool):
        return False
    if rule.action == "sandboxed":
        return _is_allowed_sandboxed(policy, rule, call)
    if rule.action == "allow":
        return _is_allowed_by(policy, rule, call)
    return _is_caught_by(rule, call)


def _is_allowed_sandboxed(policy: Policy, rule: Rule, call: Call) -> bool:
    """Return True if the call is a command in the sandbox and all of it matches.

    What a command means makes no difference then: the sandbox decides what it can do.
    """
    if call.command is None or not call.is_sandboxed:
        return False
    if rule.command is None and rule.path is None:
        return True
    return _is_allowed_by(policy, rule, call)


def _is_allowed_by(policy: Policy, rule: Rule, call: Call) -> bool:
    """Return True if all of the call matches; in doubt, no."""
    if call.unclear is not None:
        return False
    if rule.host is not None and not _is_at_host(call, rule, unknown=False):
        return False
    if rule.command is not None:
        words = call.words
        if words is None:
            return False
        if not any(commands.matches(words, pattern) for pattern in listed(rule.command)):
            return False
    if call.command is not None and not policy.knows((call.words or [])[:1], call):
        return False
    if rule.path is None:
        # In another folder a command may mean something else: `./build`, `make`, `git status`.
        return call.command is None or call.runs_in_base
    patterns = listed(rule.path)
    return bool(call.places) and all(
        any(matches(place.real, pattern, call.base) for pattern in patterns)
        for place in call.places
    )


def _is_caught_by(rule: Rule, call: Call) -> bool:
    """Return True if any part of the call matches; in doubt, yes."""
    if rule.host is not None and not _is_at_host(call, rule, unknown=True):
        return False
    if rule.command is not None and not any(
        _may_run(call, pattern) for pattern in listed(rule.command)
    ):
        return False
    return rule.path is None or any(
        matches(path, pattern, call.base, loosely=True)
        for pattern in listed(rule.path)
        for place in (*call.places, *call.named)
        for path in place
    )


def read_host(call: Call) -> str | None:
    """The host of the URL in a call's input; None if it has no URL, or not one with a host."""
    url = call.values.get("url")
    try:
        return urlsplit(url).hostname if isinstance(url, str) else None
    except ValueError:
        return None


def _is_at_host(call: Call, rule: Rule, *, unknown: bool) -> bool:
    """Return True if a call's URL is at a host that the rule names; `unknown` if its host is not known."""
    if "url" not in call.values:
        return False
    host = read_host(call)
    if host is None:
        return unknown
    return any(fnmatchcase(host, pattern.lower()) for pattern in listed(rule.host))


def _may_run(call: Call, pattern: str) -> bool:
    if call.command is None:
        return False
    if call.words is None or not takes_only_data(call.words):
        return commands.may_run(call.command, pattern)
    return commands.may_be(call.words, pattern)
