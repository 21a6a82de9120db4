"""Search files where ripgrep is not installed, in a separate process that can be killed.

    python -I walker.py REQUEST

REQUEST is JSON; the output has ripgrep's format: `path NUL` for files, `--json` for matches. The
search starts in the current folder, goes in the order of names, and follows no links: every file is
opened in the open folder in which it was found, whatever is renamed meanwhile. Only this
process runs the pattern: Python's `re` can take forever on some and cannot be interrupted.
"""

from __future__ import annotations

import base64
import json
import os
import re
import stat
import sys
from collections import deque
from collections.abc import Iterator
from typing import Any

from amplifier_support.named_tuple import NamedTuple

_FLAGS = os.O_RDONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
_SNIFFED = 64 * 1024
_ENCODINGS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}


class File(NamedTuple):
    """A file that was found.

    Attributes:
        path: Its path below the root of the search.
        folder: Descriptor of its folder, open until the next file is asked for.
        name: Its name there.
    """

    path: str
    folder: int
    name: str


class Rules(NamedTuple):
    """One `.gitignore`: its rules, and its folder's path from the top of the repository.

    That path ends in `/` or is empty.
    """

    folder: str
    spec: Any


def _is_ignored(path: str, rules: list[Rules]) -> bool:
    """Return True if the nearest rules that match `path`, from the top, ignore it."""
    for rule in reversed(rules):
        verdict = rule.spec.check_file(path[len(rule.folder) :]).include
        if verdict is not None:
            return verdict
    return False


def _read_rules(folder: str, opened: int | None) -> Rules | None:
    """The `.gitignore` of a folder: `opened` is its descriptor, None for the current one."""
    import pathspec

    try:
        descriptor = os.open(".gitignore", _FLAGS, dir_fd=opened)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            return None
        lines = stream.read(1024 * 1024).decode("utf-8", "replace").splitlines()
    return Rules(folder, pathspec.GitIgnoreSpec.from_lines(lines))


def _rules_above(levels: list[str]) -> list[Rules]:
    """The rules of the folders above the current one, outermost first.

    Args:
        levels: Folder names from the top of the repository to the current folder.
    """
    all_rules: list[Rules] = []
    for up in range(len(levels), 0, -1):
        opened = os.open("/".join([".."] * up), os.O_RDONLY)
        try:
            rules = _read_rules("".join(f"{name}/" for name in levels[: len(levels) - up]), opened)
        finally:
            os.close(opened)
        if rules is not None:
            all_rules.append(rules)
    return all_rules


def walk(opened: int, here: str, prefix: str, rules: list[Rules] | None) -> Iterator[File]:
    """Yield the files below a folder in the order of names.

    Args:
        opened: Descriptor of the folder.
        here: Its path below the root of the search, ending in `/` or empty.
        prefix: The path of the root of the search below the top of the repository, likewise.
        rules: What to skip; None skips nothing.
    """
    if rules is not None and (own := _read_rules(prefix + here, opened)) is not None:
        rules = [*rules, own]
    with os.scandir(opened) as entries:
        children = sorted(entries, key=lambda entry: os.fsencode(entry.name))
    for entry in children:
        path = here + entry.name
        if entry.name == ".git":
            continue
        if entry.is_dir(follow_symlinks=False):
            if rules and _is_ignored(f"{prefix}{path}/", rules):
                continue
            try:
                below = os.open(entry.name, _FLAGS | os.O_DIRECTORY, dir_fd=opened)
            except OSError:
                # Gone, replaced with a link, or unreadable: ripgrep skips it as well.
                continue
            try:
                yield from walk(below, f"{path}/", prefix, rules)
            finally:
                os.close(below)
        elif entry.is_file(follow_symlinks=False) and not (
            rules and _is_ignored(prefix + path, rules)
        ):
            yield File(path, opened, entry.name)


def read_text(file: File, largest: int) -> str | None:
    """The text of a file; None if it is not text, too large, or unreadable."""
    try:
        descriptor = os.open(file.name, _FLAGS, dir_fd=file.folder)
    except OSError:
        return None
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(descriptor)
        if not stat.S_ISREG(status.st_mode) or status.st_size > largest:
            return None
        data = stream.read(largest)
    encoding = _ENCODINGS.get(data[:2])
    if encoding is not None:
        return data[2:].decode(encoding, "replace")
    if b"\0" in data[:_SNIFFED]:
        return None
    return data.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "replace")


def matches(
    text: str, pattern: re.Pattern[str], context: int, max_matches: int
) -> Iterator[tuple[str, int, str, int]]:
    """(kind, line number, line, column of the match) of every match and its context lines."""
    before: deque[tuple[int, str]] = deque(maxlen=context)
    after = count = 0
    for number, line in enumerate(text.split("\n"), 1):
        line = line.removesuffix("\r")
        match = pattern.search(line) if count < max_matches else None
        if match is not None:
            for earlier, context_line in before:
                yield "context", earlier, context_line, 0
            before.clear()
            yield "match", number, line, match.start()
            count += 1
            after = context
        elif after:
            yield "context", number, line, 0
            after -= 1
        elif count >= max_matches:
            return
        elif context:
            before.append((number, line))


def _print_line(kind: str, path: str, number: int, line: str, column: int) -> None:
    """Print one line in the form of `rg --json`; columns count bytes."""
    start = len(line[:column].encode("utf-8", "replace"))
    data = {
        "path": _encode_name(path),
        "lines": {"text": line},
        "line_number": number,
        "submatches": [{"start": start}] if kind == "match" else [],
    }
    print(json.dumps({"type": kind, "data": data}))


def _encode_name(path: str) -> dict[str, str]:
    try:
        path.encode("utf-8")
    except UnicodeEncodeError:
        return {"bytes": base64.b64encode(os.fsencode(path)).decode("ascii")}
    return {"text": path}


def files(request: dict[str, Any]) -> Iterator[File]:
    """The files to search."""
    levels: list[str] = request["levels"]
    rules = _rules_above(levels) if request["gitignore"] else None
    here = os.open(".", os.O_RDONLY)
    try:
        if request["file"] is not None:
            yield File(request["file"], here, request["file"])
            return
        yield from walk(here, "", "".join(f"{name}/" for name in levels), rules)
    finally:
        os.close(here)


def main(request: dict[str, Any]) -> int:
    """Carry out a request; an invalid pattern exits with 2, as in ripgrep."""
    sys.path.extend(request["path"])
    if request["pattern"] is None:
        for file in files(request):
            sys.stdout.buffer.write(os.fsencode(file.path) + b"\0")
        return 0
    try:
        flags = re.IGNORECASE if request["ignore_case"] else re.NOFLAG
        pattern = re.compile(request["pattern"], flags)
    except re.error as error:
        print(f"{error.msg} at position {error.pos}")
        return 2
    for file in files(request):
        text = read_text(file, request["max_file_size"])
        if text is not None:
            for match in matches(text, pattern, request["context"], request["max_matches"]):
                _print_line(match[0], file.path, *match[1:])
    return 0


if __name__ == "__main__":
    code = main(json.loads(sys.argv[1]))
    sys.stdout.flush()
    sys.exit(code)
