"""Recognise shell commands that only read.

A command only reads if each program in it is on the list below, with arguments that cannot make it
write or run something. Programs may be joined by `|`, `&&`, `||` and `;`. In doubt, a command does not
count as one; the cost is a question.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from amplifier_modules.hooks_approval.commands import Unclear, segments_of

_ANY = """
    ls cat head tail wc grep egrep fgrep pwd echo true false stat du df basename dirname realpath readlink
    which whoami id uname nl cut tr diff cmp comm md5sum sha1sum sha256sum cksum seq tac rev fold column
    paste expand jq od hexdump strings cd sleep
"""
"""Programs that only read, whatever their arguments."""

_FORBIDDEN = {
    "sort": r"-[^-]*[oT]|--[oct]|--fil",
    "tree": r"-[^-]*[oR]|--o",
    "rg": r"--pre|--hostname-bin|--search-zip|-[^-]*z",
    "find": r"-delete|-fprint|-fls|-exec|-ok|-files0-from",
    "file": r"-[^-]*[CmzZ]|--(co|ma|un)",
    "date": r"[^+-]|-[^-]*[sf]|--[sf]",
    "xxd": r"-[^-]*r|[^-]",
    # The environment of other processes may hold keys.
    "ps": r"[a-zA-Z]*[eE][a-zA-Z]*$|-[^-]*E|.*environ",
}
"""Programs that only read without arguments that begin like this; long options may be abbreviated."""

_GIT_READS = """
    status diff log show rev-parse ls-files ls-tree blame describe shortlog grep cat-file rev-list
    merge-base name-rev show-ref for-each-ref diff-tree whatchanged check-ignore count-objects
"""
_GIT_SHOWS = frozenset(_GIT_READS.split())
_GIT_LISTS: dict[str, frozenset[str]] = {
    "branch": frozenset({"-a", "-r", "-v", "-vv", "--list", "--show-current", "--all"}),
    "remote": frozenset({"-v", "--verbose"}),
    "tag": frozenset({"-l", "--list"}),
    "stash": frozenset({"list"}),
    "worktree": frozenset({"list"}),
    "reflog": frozenset(),
}
"""Commands of git that only list if they have no other arguments than these."""

# Abbreviations of `--output`, `--open-files-in-pager`, `--ext-diff` and others count, too. `-O` of
# grep may follow other letters; the formats `%G?` and `%(signature)` run gpg; submodules are
# repositories with a configuration of their own.
_GIT_WRITES = re.compile(
    r"--o(?!n)|--ext|-O|--textc|--fil(?!ter=)|--pag|--show-si|--submo|--rec|.*%(G|\(sig)"
)
_GIT_GREP_WRITES = re.compile(r"-[^-]*O")


_NO_CONTENT = """
    status rev-parse ls-files ls-tree describe shortlog rev-list merge-base name-rev show-ref
    for-each-ref check-ignore count-objects branch remote tag stash worktree reflog
"""
_GIT_NAMES = frozenset(_NO_CONTENT.split())
"""Commands of git that show no content of files."""

_GIT_LOG_NAMES = re.compile(
    r"-n?\d*|--(oneline|graph|all|decorate|stat|shortstat|name-only|name-status|no-merges|merges|reverse"
    r"|first-parent|follow|abbrev-commit|no-color|format|pretty|since|until|after|before|author|grep|date"
    r"|max-count)(=.*)?|--",
    re.DOTALL,
)


def only_reads(command: str) -> bool:
    """Return True if a command can only read."""
    try:
        segments = segments_of(command)
    except Unclear:
        return _only_reads_anything(command)
    moved = any(words[0] == "cd" for words in segments)
    return all(_reads(words, moved=moved) for words in segments)


def segments_read(command: str) -> tuple[list[list[str]], bool]:
    """The words of each program of a command that `only_reads`, and whether the shell expands them."""
    try:
        return segments_of(command), False
    except Unclear:
        return segments_of(command, wildcards=True), True


def reads_below(words: Sequence[str]) -> bool:
    """Return True if a command that reads shows what is in files that it does not name."""
    program, *arguments = words
    if program in ("rg", "diff"):
        return True
    if program in ("grep", "egrep", "fgrep"):
        return any(re.match(r"-[^-]*[rRd]|--(rec|deref|dir)", one) for one in arguments)
    return program == "git" and _shows_content(arguments)


def _shows_content(arguments: Sequence[str]) -> bool:
    """Return True if git shows the content of files, with these arguments."""
    rest = [one for one in arguments if one != "--no-pager"]
    if rest[:1] == ["log"]:
        options = [one for one in rest if one.startswith("-")]
        return not all(map(_GIT_LOG_NAMES.fullmatch, options))
    if rest[:1] == ["status"]:
        return any(re.match(r"-[^-]*v|--v", one) for one in rest[1:])
    return rest[:1] not in [[name] for name in _GIT_NAMES]


def takes_only_data(words: Sequence[str]) -> bool:
    """Return True if a plain command is one whose arguments are never run, such as the message of a commit."""
    return list(words[:2]) in (["git", "commit"], ["git", "tag"]) or _reads(words, moved=False)


def _only_reads_anything(command: str) -> bool:
    """Return True if a command can only read, whatever its wildcards expand to."""
    try:
        return all(words[0] in _PROGRAMS for words in segments_of(command, wildcards=True))
    except Unclear:
        return False


def _reads(words: Sequence[str], *, moved: bool) -> bool:
    program, *arguments = words
    if program in _PROGRAMS:
        return True
    if program == "git":
        # The config of another repository could name programs to run.
        return not moved and _git_reads(arguments)
    forbidden = _FORBIDDEN.get(program)
    return forbidden is not None and not any(re.match(forbidden, one) for one in arguments)


def _git_reads(arguments: Sequence[str]) -> bool:
    rest = [one for one in arguments if one != "--no-pager"]
    if not rest:
        return False
    name, *rest = rest
    if name in _GIT_LISTS:
        return set(rest) <= _GIT_LISTS[name] and (name not in ("stash", "worktree") or bool(rest))
    if name == "grep" and any(map(_GIT_GREP_WRITES.match, rest)):
        return False
    return name in _GIT_SHOWS and not any(map(_GIT_WRITES.match, rest))


_PROGRAMS = frozenset(_ANY.split())
