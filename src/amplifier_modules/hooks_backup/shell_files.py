"""The files a shell command names and so may change."""

from __future__ import annotations

import glob
import os
import shlex
from collections.abc import Iterator

MOST_WORDS = 500
MOST_FILES = 200
_LONGEST = 1024
_MOST_READ = 8192
_OPERATORS = frozenset("();<>|&")
_WILD = frozenset("*?[")


def named_paths(command: str, base: str) -> list[str]:
    """Absolute paths that words of `command` may name, existing or not.

    Handles plain words, `--option=path`, redirections, wildcards within one folder, and `cd`. Files
    a program changes without being named are missed.

    Args:
        command: The command line.
        base: Absolute folder it runs in.
    """
    found: dict[str, None] = {}
    folders = [base]
    words = _words(command)
    for before, word in zip(["", *words], words, strict=False):
        if before in ("cd", "pushd"):
            folders.append(os.path.join(folders[-1], os.path.expanduser(word)))
        for part in {word, word.partition("=")[2]}:
            if not part or part.startswith("-") or len(part) > _LONGEST or "\0" in part:
                continue
            for path in _paths(os.path.expanduser(part), folders):
                found[path] = None
                if len(found) >= MOST_FILES:
                    return list(found)
    return list(found)


def _paths(word: str, folders: list[str]) -> Iterator[str]:
    for folder in folders:
        path = os.path.normpath(os.path.join(folder, word))
        if _WILD.isdisjoint(word):
            yield path
        elif _WILD.isdisjoint(os.path.dirname(path)):
            for number, match in enumerate(glob.iglob(path)):
                if number >= MOST_FILES:
                    break
                yield match


def _words(command: str) -> list[str]:
    lexer = shlex.shlex(command[:_MOST_READ], posix=True, punctuation_chars=True)
    lexer.whitespace_split = True
    lexer.commenters = ""
    words: list[str] = []
    try:
        for word in lexer:
            if not _OPERATORS.issuperset(word):
                words.append(word)
            if len(words) >= MOST_WORDS:
                break
    except ValueError:
        # An unclosed quote, as in the text of a here-document: the rest is not read.
        pass
    return words
