"""Check whether git runs other programs in a repository.

The configuration of a repository can name programs that even `git status` runs. So can that of a
repository inside it, and a hook is itself a program. A fresh clone has none of these, but a repository
unpacked from an archive can. Git itself finds the repository and reads its configuration, with
commands that start nothing: its syntax has too many corners to be parsed by anything else.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from amplifier_support.git import git_environment
from amplifier_support.programs import TimedOut, TooMuchOutput, find_program, run

_MAX_SECONDS = 5.0
_MAX_BYTES = 64 * 1024 * 1024
_OWN = frozenset({"system", "global", "command"})
_HARMLESS = re.compile(
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


_BOOLEAN = re.compile(r"(true|false|yes|no|on|off|0|1)?", re.IGNORECASE)


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
