"""The paths a tool call names, and whether they match a pattern."""

from __future__ import annotations

import glob
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, cast

from amplifier_support.lazy_pattern import lazy_pattern
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.path_patterns import fits, split_pattern
from amplifier_support.session_capabilities import MentionResolver

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


def places_in(
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


def places_in_words(words: Iterable[str], base: str) -> Iterator[Place]:
    """The paths that words of a command may mean, as a whole or in part."""
    for word in words:
        for text in _path_texts(word):
            if text.isprintable():
                yield place(_without_tilde(text, base), base)


def places_read(
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
    wanted = _real_start(os.path.join(base, os.path.expanduser(pattern)))
    if loosely:
        path, wanted = path.casefold(), wanted.casefold()
    return fits(path, wanted)


def _real_start(pattern: str) -> str:
    """Resolve links in the part of the pattern without wildcards, as in paths."""
    start, rest = split_pattern(pattern)
    return "/".join([start, *rest])
