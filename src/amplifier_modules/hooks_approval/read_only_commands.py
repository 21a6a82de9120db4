"""Recognise shell commands that only read.

A command only reads if each program in it is on the list below, with arguments that cannot make it
write or run something. Programs may be joined by `|`, `&&`, `||` and `;`. In doubt, a command does not
count as one; the cost is a question.

The program must be known to the user. One in the working directory may have been written by the model, or
come with the files; it is known if it was already on PATH when the session began and has not changed since,
as in a virtual environment.

git must run no other programs. The configuration of a repository can name programs that even `git status`
runs. So can that of a repository inside it, and a hook is itself a program. A fresh clone has none of
these, but a repository unpacked from an archive can. Git itself finds the repository and reads its
configuration, with commands that start nothing: its syntax has too many corners to be parsed by anything
else.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Sequence
from pathlib import Path

from amplifier_modules.hooks_approval.commands import Unclear, split_segments
from amplifier_support.files import is_below
from amplifier_support.programs import TimedOut, TooMuchOutput, find_program, git_environment, run
from amplifier_support.text import lazy_pattern

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
_GIT_WRITES = lazy_pattern(
    r"--o(?!n)|--ext|-O|--textc|--fil(?!ter=)|--pag|--show-si|--submo|--rec|.*%(G|\(sig)"
)
_GIT_GREP_WRITES = lazy_pattern(r"-[^-]*O")


_NO_CONTENT = """
    status rev-parse ls-files ls-tree describe shortlog rev-list merge-base name-rev show-ref
    for-each-ref check-ignore count-objects branch remote tag stash worktree reflog
"""
_GIT_NAMES = frozenset(_NO_CONTENT.split())
"""Commands of git that show no content of files."""

_GIT_LOG_NAMES = lazy_pattern(
    r"-n?\d*|--(oneline|graph|all|decorate|stat|shortstat|name-only|name-status|no-merges|merges|reverse"
    r"|first-parent|follow|abbrev-commit|no-color|format|pretty|since|until|after|before|author|grep|date"
    r"|max-count)(=.*)?|--",
    re.DOTALL,
)


def only_reads(command: str) -> bool:
    """Return True if a command can only read."""
    try:
        segments, expands = segments_read(command)
    except Unclear:
        return False
    if expands:
        # Only what reads whatever the wildcards expand to.
        return all(words[0] in _PROGRAMS for words in segments)
    moved = any(words[0] == "cd" for words in segments)
    return all(_reads(words, moved=moved) for words in segments)


def segments_read(command: str) -> tuple[list[list[str]], bool]:
    """The words of each program of a command, and whether the shell expands them.

    Raises:
        Unclear: One of them is not plain even with wildcards.
    """
    try:
        return split_segments(command), False
    except Unclear:
        return split_segments(command, wildcards=True), True


def reads_below(words: Sequence[str]) -> bool:
    """Return True if a command that reads shows what is in files that it does not name."""
    program, *arguments = words
    if program in ("rg", "diff"):
        return True
    if program in ("grep", "egrep", "fgrep"):
        return any(re.match(r"-[^-]*[rRd]|--(rec|deref|dir)", argument) for argument in arguments)
    return program == "git" and _shows_content(arguments)


def _shows_content(arguments: Sequence[str]) -> bool:
    """Return True if git shows the content of files, with these arguments."""
    rest = [argument for argument in arguments if argument != "--no-pager"]
    if rest[:1] == ["log"]:
        options = [word for word in rest if word.startswith("-")]
        return not all(map(_GIT_LOG_NAMES.fullmatch, options))
    if rest[:1] == ["status"]:
        return any(re.match(r"-[^-]*v|--v", word) for word in rest[1:])
    return rest[:1] not in [[name] for name in _GIT_NAMES]


def takes_only_data(words: Sequence[str]) -> bool:
    """Return True if a plain command is one whose arguments are never run, such as the message of a commit."""
    return list(words[:2]) in (["git", "commit"], ["git", "tag"]) or _reads(words, moved=False)


def _reads(words: Sequence[str], *, moved: bool) -> bool:
    program, *arguments = words
    if program in _PROGRAMS:
        return True
    if program == "git":
        # The config of another repository could name programs to run.
        return not moved and _git_reads(arguments)
    forbidden = _FORBIDDEN.get(program)
    return forbidden is not None and not any(
        re.match(forbidden, argument) for argument in arguments
    )


def _git_reads(arguments: Sequence[str]) -> bool:
    rest = [argument for argument in arguments if argument != "--no-pager"]
    if not rest:
        return False
    name, *rest = rest
    if name in _GIT_LISTS:
        return set(rest) <= _GIT_LISTS[name] and (name not in ("stash", "worktree") or bool(rest))
    if name == "grep" and any(map(_GIT_GREP_WRITES.match, rest)):
        return False
    return name in _GIT_SHOWS and not any(map(_GIT_WRITES.match, rest))


_PROGRAMS = frozenset(_ANY.split())


_MAX_SECONDS = 5.0
_MAX_BYTES = 64 * 1024 * 1024
_OWN = frozenset({"system", "global", "command"})
_HARMLESS = lazy_pattern(
    r"""
    core\.(repositoryformatversion|filemode|bare|logallrefupdates|ignorecase|precomposeunicode|symlinks
      |autocrlf|eol|safecrlf|quotepath|abbrev|untrackedcache|sparsecheckout|sparsecheckoutcone|longpaths
      |protectntfs|protecthfs|trustctime|checkstat|bigfilethreshold|compression|commitgraph|fscache
      |multipackindex|preloadindex|hidedotfiles|whitespace|splitindex|commentchar|hookspath|worktree
      |excludesfile|attributesfile)
    |extensions\.(objectformat|compatobjectformat|refstorage|worktreeconfig|relativeworktrees)
    |remote\..+\.(url|pushurl|fetch|push|tagopt|prune|prunetags|mirror|gh-resolved)
    |branch\..+\.[a-z0-9-]+ |submodule\..+\.(url|active|branch) |submodule\.active
    |(user|author|committer)\.[a-z]+ |(color|advice|http|url|gitflow|maintenance)\..+
    |(init|pull|push|fetch|rebase|merge|commit|tag|pack|index|receive|transfer|i18n|checkout|rerere
      |worktree|stash|column|feature)\.[a-z]+
    |gc\.(auto|autodetach|autopacklimit|pruneexpire|reflogexpire)
    |diff\.(renames|renamelimit|algorithm|mnemonicprefix|noprefix|colormoved|colormovedws|context|relative
      |interhunkcontext|indentheuristic|wserrorhighlight|wordregex)
    |diff\..+\.(xfuncname|binary|wordregex)
    |status\.(showuntrackedfiles|short|branch|relativepaths|renames|aheadbehind|showstash)
    |log\.(date|decorate|follow|abbrevcommit)
    |lfs\.(repositoryformatversion|.+\.(access|locksverify))
    """,
    re.VERBOSE,
)
"""Keys of a repository's configuration with which git, when it reads, starts nothing.

Every other key counts as one that names a program: newer versions of git know further ones.
"""


_BOOLEAN = lazy_pattern(r"(true|false|yes|no|on|off|0|1)?", re.IGNORECASE)


def runs_only_git(folder: str) -> bool:
    """Return True if a git command that reads runs no other program in a folder; False in doubt.

    Programs that the user or the system has configured do not count.
    """
    listed = _git(folder, "config", "--list", "--null", "--show-scope")
    if listed is None:
        return False
    fields = listed.split("\0")
    entries = [
        entry for scope, entry in zip(fields[::2], fields[1::2], strict=False) if scope not in _OWN
    ]
    if not all(map(_is_harmless, entries)):
        return False
    # Even commands that only read update the index, with the times of changed files.
    hook = _git(folder, "rev-parse", "--git-path", "hooks/post-index-change")
    if hook is None:
        # Not in a repository.
        return not entries
    if "\ufffd" in hook or os.path.lexists(os.path.join(folder, hook.removesuffix("\n"))):
        return False
    if any(entry.startswith("core.worktree\n") for entry in entries):
        # In a submodule; elsewhere it could have git show any files of the machine.
        top = _git(folder, "rev-parse", "--show-toplevel")
        if top is None or not os.path.lexists(os.path.join(top.removesuffix("\n"), ".git")):
            return False
    # An entry for another repository, in which git also reads the configuration.
    index = _git(folder, "ls-files", "--stage", "-z", ":/")
    return index is not None and "\x00160000 " not in f"\0{index}"


def _is_harmless(entry: str) -> bool:
    name, _, value = entry.partition("\n")
    if name == "core.fsmonitor":
        return _BOOLEAN.fullmatch(value) is not None
    return _HARMLESS.fullmatch(name) is not None


def _git(folder: str, *arguments: str) -> str | None:
    """The output of a git command that starts no program; None if it fails."""
    git = find_program("git", folder)
    if git is None:
        return None
    # The same repository and hooks as for a command of the session.
    kept = [name for name in os.environ if name.startswith("GIT_") and "PATHSPECS" not in name]
    environment = git_environment(folder=folder, keep=kept, user_config=True)
    environment["GIT_CONFIG_COUNT"] = "0"
    try:
        done = run(
            [git, *arguments],
            cwd=Path(folder),
            env=environment,
            seconds=_MAX_SECONDS,
            max_bytes=_MAX_BYTES,
        )
    except (OSError, TimedOut, TooMuchOutput):
        return None
    return done.stdout if done.code == 0 else None


_Identity = tuple[int, int, int, int]
"""Device, inode, time of change and size of a file: another one when it is replaced or written to."""


class Programs:
    """The programs on PATH, as they were when the session began.

    Args:
        base: The working directory, links resolved.
        path: The PATH of commands.
    """

    def __init__(self, base: str, path: str | None = None) -> None:
        self._base = base
        path = os.environ.get("PATH", os.defpath) if path is None else path
        self._entries = path.split(os.pathsep)
        self._known: dict[str, _Identity] = {}
        for entry in self._entries:
            if os.path.isabs(entry) and self._is_inside(entry):
                self._known.update(_programs_in(entry))

    def is_known(self, name: str, folder: str) -> bool:
        """Return True if a name refers to a program outside the working directory, or to a known one in it.

        Args:
            name: The first word of the command; any path is accepted, as it shows what is run.
            folder: Where the command runs.
        """
        if "/" in name:
            return True
        for entry in self._entries:
            place = os.path.join(folder, entry)
            file = os.path.join(place, name)
            if not os.path.isfile(file) or not os.access(file, os.X_OK):
                continue
            if os.path.isabs(entry) and not self._is_inside(place):
                return True
            return self._known.get(file) == _identity(file)
        # A shell built-in, or nothing that can be run.
        return True

    def _is_inside(self, path: str) -> bool:
        return is_below(os.path.realpath(path), self._base)


def _programs_in(folder: str) -> Iterator[tuple[str, _Identity]]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    for name in names:
        file = os.path.join(folder, name)
        if (identity := _identity(file)) is not None and os.access(file, os.X_OK):
            yield file, identity


def _identity(file: str) -> _Identity | None:
    try:
        facts = os.stat(file)
    except OSError:
        return None
    return facts.st_dev, facts.st_ino, facts.st_mtime_ns, facts.st_size
