"""Parse shell commands, as far as that is possible with certainty.

A command is *plain* if it is one program with literal words: nothing for the shell to run, join,
redirect or expand. Every other command is unclear, and a rule never allows an unclear one. In doubt
a command is unclear; the cost is a question.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence
from fnmatch import fnmatchcase

from amplifier_modules.hooks_approval.invocations import PART, UNKNOWN, forms, invocations
from amplifier_support.text import lazy_pattern

_OPERATORS = {
    **dict.fromkeys(";&|", "it runs several commands"),
    **dict.fromkeys("<>", "it redirects input or output"),
    **dict.fromkeys("()", "it runs a subshell"),
}
_EXPANDED = frozenset("*?[]{}")
_JOINER = lazy_pattern(
    r"""'[^']*'|"(?:[^"\\]|\\.)*"|\\.
    |(?<=\s)(?P<quiet>2>&1|[12]?>\s?/dev/null)(?=[\s;|&]|$)
    |(?P<joiner>\|\||&&|;|\|(?!&))""",
    re.VERBOSE,
)
"""Operators that join commands, and quotes and redirections that may contain the same characters."""

_SPECIAL = lazy_pattern(r"[\s;&|<>()`$'\"{}\\=]+")
_ASSIGNMENT = lazy_pattern(r"\w+(\[.*\])?\+?=")
_RUN_OTHERS = """
    sudo doas su pkexec runuser env xargs parallel nohup nice ionice chrt taskset time timeout stdbuf
    setsid script ssh watch flock chroot unshare nsenter strace ltrace gdb busybox toybox systemd-run
    entr expect screen tmux at batch crontab start-stop-daemon unbuffer
    sh bash dash zsh ksh mksh ash fish csh tcsh rbash pwsh
    eval exec source . command builtin trap coproc let declare typeset local export readonly unset
    read mapfile readarray compgen complete enable hash bind alias set shopt fc getopts
    ! [[ if then elif else fi for while until do done case esac select function in
"""
"""Programs, shell words and built-ins that run, or change the meaning of, their arguments."""

_RUNNERS = frozenset(_RUN_OTHERS.split())
_EVALUATE = frozenset({"test", "[", "printf"})
_FIND_RUNS = frozenset({"-exec", "-execdir", "-ok", "-okdir"})


class Unclear(Exception):
    """A command that cannot be judged; the message says why, as `it …`."""


def split_words(command: str) -> list[str]:
    """The words of a plain command, without quotes.

    Raises:
        Unclear: The command is not plain.
    """
    _check_characters(command)
    words = _Scanner(command).words()
    _check_program(words)
    return words


def split_segments(command: str, *, wildcards: bool = False) -> list[list[str]]:
    """The words of each plain command in one that joins them by `|`, `&&`, `||` or `;`.

    Redirections to `/dev/null` and from stderr to stdout are ignored.

    Args:
        command: The command.
        wildcards: Allow wildcards, braces and `~`, which the shell expands to any words.

    Raises:
        Unclear: One of them is not plain.
    """
    _check_characters(command)
    pieces = [""]
    at = 0
    for match in _JOINER.finditer(command):
        pieces[-1] += command[at : match.start()]
        at = match.end()
        if match["joiner"]:
            pieces.append("")
        else:
            pieces[-1] += " " if match["quiet"] else match[0]
    pieces[-1] += command[at:]
    segments = [_Scanner(piece, wildcards=wildcards).words() for piece in pieces]
    for words in segments:
        _check_program(words)
    return segments


def _check_characters(command: str) -> None:
    if any(_is_odd(character) for character in command):
        raise Unclear("it contains line breaks or invisible characters")


def _check_program(words: Sequence[str]) -> None:
    if not words:
        raise Unclear("it is empty")
    first = words[0]
    if _ASSIGNMENT.match(first):
        raise Unclear("it sets variables")
    program = first.rsplit("/", 1)[-1].lower().removesuffix(".exe")
    runs = program in _RUNNERS or (program == "find" and not _FIND_RUNS.isdisjoint(words))
    if runs:
        raise Unclear(f"'{program}' runs other commands")
    if program in _EVALUATE and any("$(" in word or "`" in word for word in words):
        raise Unclear(f"'{program}' evaluates its arguments")


def matches(words: Sequence[str], pattern: str) -> bool:
    """Return True if a plain command matches a pattern, word by word."""
    parts = pattern.split()
    if parts[-1] == "*" and len(words) >= len(parts) - 1:
        parts = parts[:-1]
        words = words[: len(parts)]
    return len(words) == len(parts) and all(map(fnmatchcase, words, parts))


def may_run(command: str, pattern: str) -> bool:
    """Return True if a command might run something that matches a pattern; for patterns that restrict.

    Also true if the match is where it would not be run, such as inside quotes or as arguments, and if
    what runs, or how git is called, is known only when it runs.
    """
    return _contains(command, pattern) or any(
        _may_match(words, pattern) for words in invocations(command)
    )


def may_be(words: Sequence[str], pattern: str) -> bool:
    """Return True if a plain command that runs no other program might match a pattern that restricts."""
    return any(_may_match(form, pattern) for form in forms(words))


def _may_match(words: Sequence[str], pattern: str) -> bool:
    parts = pattern.split()
    parts[0] = parts[0].rsplit("/", 1)[-1].lower()
    is_open = len(parts) > 1 and parts[-1] == "*"
    parts = parts[:-1] if is_open else parts
    if words[1:2] and words[1].startswith("-") and fnmatchcase(words[0], parts[0]):
        # An option, perhaps with a value, before the words that count.
        rest = iter(words)
        if all(any(_fits(word, part) for word in rest) for part in parts):
            return True
    for word, part in zip(words, parts, strict=False):
        if UNKNOWN in word:
            return True
        if not _fits(word, part):
            return False
    following = words[len(parts) : len(parts) + 1]
    return len(words) >= len(parts) and (is_open or not following or UNKNOWN in following[0])


def _fits(word: str, part: str) -> bool:
    return UNKNOWN in word or PART in word or fnmatchcase(word, part)


def _contains(command: str, pattern: str) -> bool:
    """Return True if a command contains the words of a pattern, whatever is around them."""
    words = split_roughly(command)
    parts = [re.sub(r"['\"]", "", word) for word in pattern.split()]
    open_end = len(parts) > 1 and parts[-1] == "*"
    parts = parts[:-1] if open_end else parts
    for start in range(len(words) - len(parts) + 1):
        window = words[start : start + len(parts)]
        window[0] = window[0] if "/" in parts[0] else window[0].rsplit("/", 1)[-1]
        if all(map(fnmatchcase, window, parts)):
            return True
    return False


def split_roughly(command: str) -> list[str]:
    """The pieces of a command between everything that means something to a shell."""
    return [piece for piece in _SPECIAL.split(command) if piece]


def _is_odd(character: str) -> bool:
    if character in " \t":
        return False
    # Control, format (bidi and zero-width) and unpaired characters, and non-ASCII white space.
    return unicodedata.category(character)[0] == "C" or character.isspace()


class _Scanner:
    """Split a command as a POSIX shell does, stopping at anything special."""

    def __init__(self, command: str, *, wildcards: bool = False) -> None:
        self._rest = iter(command)
        self._wildcards = wildcards

    def words(self) -> list[str]:
        words: list[str] = []
        word: str | None = None
        for character in self._rest:
            if character in " \t":
                if word is not None:
                    words.append(word)
                word = None
            elif character == "#" and word is None:
                raise Unclear("it contains a comment")
            else:
                word = (word or "") + self._next(character, word or "")
        return words if word is None else [*words, word]

    def _next(self, character: str, before: str) -> str:
        if character == "'":
            return self._single()
        if character == '"':
            return self._double()
        if character == "\\":
            return self._escaped()
        if character in _OPERATORS:
            following = next(self._rest, "")
            operator = character * (1 + (following == character and character in "&|<>"))
            raise Unclear(f"{_OPERATORS[character]} ({operator})")
        if character in "$`":
            raise Unclear(f"it contains an expansion ({character})")
        if self._wildcards:
            return character
        if character in _EXPANDED or (character == "~" and (not before or before[-1] in "=:")):
            raise Unclear(f"it contains '{character}', which the shell expands")
        return character

    def _escaped(self) -> str:
        character = next(self._rest, None)
        if character is None:
            raise Unclear("it ends with a backslash")
        return character

    def _single(self) -> str:
        text = ""
        for character in self._rest:
            if character == "'":
                return text
            text += character
        raise Unclear("it has an unclosed quote")

    def _double(self) -> str:
        text = ""
        for character in self._rest:
            if character == '"':
                return text
            if character in "$`":
                raise Unclear(f"it contains an expansion ({character})")
            if character == "\\":
                following = self._escaped()
                text += following if following in '$`"\\' else "\\" + following
            else:
                text += character
        raise Unclear("it has an unclosed quote")
