"""Patterns for file names: those of `.gitignore`, plus alternatives in braces."""

from __future__ import annotations

import re
from collections.abc import Callable

_MOST_ALTERNATIVES = 256


class BadGlob(Exception):
    """A pattern that cannot match anything useful; the message is for the model."""


def matcher(pattern: str) -> Callable[[str], bool]:
    """Return a test whether a path below the folder matches.

    `*.py` matches at any depth, `src/*.py` only in src, `src/**/*.py` anywhere below it, `src/`
    everything in it; `*.{js,ts}` matches either.

    Raises:
        BadGlob: It is empty, leads out of the folder, or has too many alternatives.
    """
    import pathspec

    pattern = pattern.strip().removeprefix("./")
    if not pattern or "\0" in pattern or ".." in pattern.split("/"):
        raise BadGlob(f"{pattern!r} is not a pattern for paths below the folder, such as '**/*.py'")
    # A leading '!' or '#' has a meaning in .gitignore; here it is part of a name.
    lines = [re.sub(r"^([!#])", r"\\\1", one) for one in alternatives(pattern)]
    spec = pathspec.GitIgnoreSpec.from_lines(lines)
    return spec.match_file


def alternatives(pattern: str) -> list[str]:
    """Expand `{a,b}` into a list of patterns; braces may be nested.

    Raises:
        BadGlob: There are too many.
    """
    done: dict[str, None] = {}
    pending = [pattern]
    while pending:
        text = pending.pop()
        found = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if found is None:
            done[text] = None
        else:
            head, tail = text[: found.start()], text[found.end() :]
            pending += [f"{head}{choice}{tail}" for choice in found[1].split(",")]
        if len(done) + len(pending) > _MOST_ALTERNATIVES:
            raise BadGlob(f"{pattern!r} has more than {_MOST_ALTERNATIVES} alternatives")
    return list(done)
