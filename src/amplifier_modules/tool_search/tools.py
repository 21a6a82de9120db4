"""The two tools as models see them, and the confirmation of what ripgrep reports.

ripgrep opens files by name, and names can change during a search: if a link replaces a folder at that
moment, it reads a file outside the folder to search. So every reported line is looked up again in the file
of that name, opened without following links. Files without those lines are left out.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import hashlib
import itertools
import json
import os
import re
import stat
import sys
from abc import abstractmethod
from array import array
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar, Literal

from pydantic import Field

from amplifier_core.models import ToolResult
from amplifier_modules._shared.files import Grants, Location, PathError, in_thread
from amplifier_modules._shared.module.config import (
    ModuleConfig,
    Published,
    alias_for,
    ignored,
    refused,
    several,
)
from amplifier_modules._shared.module.tools import (
    CheckedTool,
    InvalidInput,
    object_schema,
    parameter,
)
from amplifier_support.environment import minimal_environment
from amplifier_support.files import open_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.process.commands import Command, CommandError, ProcessRunner
from amplifier_support.programs import find_program, package_folder


class SearchConfig(ModuleConfig):
    """Settings of tool-search.

    Attributes:
        allowed_read_paths: Folders or files that may be searched, absolute or relative to the
            working directory; `~` is expanded. By default the working directory.
        gitignore: Skip files ignored by `.gitignore`. `.git` is always skipped.
        max_results: Lines or files one call may return.
        max_line: Characters of a line to show.
        max_file_size: Bytes of the largest file to search.
        timeout: Time limit of a search, in seconds.
        engine: ripgrep, python, or auto: ripgrep if it is installed.
    """

    published: ClassVar[Mapping[str, Published]] = {
        "allowed_paths": alias_for("allowed_read_paths"),
        "working_dir": refused(
            "relative paths start at the session's working directory, which hooks rely on; run "
            "amplifier there",
            ".",
        ),
        **several(
            "grep glob", refused("both tools share their settings; set them at the top level", {})
        ),
        "exclusions": refused("list files to skip in a '.gitignore' file", []),
        "default_limits": ignored("set 'max_results'"),
    }

    allowed_read_paths: list[str] | None = None
    gitignore: bool = True
    max_results: int = Field(default=200, ge=1)
    max_line: int = Field(default=400, ge=40)
    max_file_size: int = Field(default=10_000_000, ge=1)
    timeout: float = Field(default=30, gt=0)
    engine: Literal["auto", "ripgrep", "python"] = "auto"


# -- the search engines ------------------------------------------------------------------


_WALKER = Path(__file__).with_name("walker.py")
# Only `.gitignore` counts, whatever else this user or machine has configured.
_RIPGREP = (
    *("--no-config", "--color=never", "--no-messages", "--sort=path", "--hidden"),
    *("--no-require-git", "--no-ignore-dot", "--no-ignore-exclude", "--no-ignore-global"),
    *("--glob", "!.git"),
)


class Query(NamedTuple):
    """The terms and limits of a search.

    Attributes:
        pattern: The regular expression; None lists files.
        ignore_case: Ignore case.
        context: Lines to show before and after a match.
        max_matches: Matches after which the rest of a file is skipped.
        file: The only file to search; None searches everything below the folder.
        levels: Folder names from the top of the repository to the folder.
    """

    pattern: str | None
    ignore_case: bool = False
    context: int = 0
    max_matches: int = 1_000_000
    file: str | None = None
    levels: Sequence[str] = ()


def _ripgrep_command(program: str, config: SearchConfig, query: Query) -> list[str]:
    """The command line of ripgrep; it runs in the folder that is searched."""
    options = [*_RIPGREP, f"--max-filesize={config.max_file_size}"]
    if not config.gitignore:
        options.append("--no-ignore")
    elif not query.levels:
        # Outside a repository, .gitignore files further up do not count.
        options.append("--no-ignore-parent")
    if query.pattern is None:
        return [program, *options, "--files", "--null"]
    options += ["--json", f"--max-count={query.max_matches}", f"--context={query.context}"]
    if query.ignore_case:
        options.append("--ignore-case")
    return [program, *options, f"--regexp={query.pattern}", "--", query.file or "."]


def _walker_command(config: SearchConfig, query: Query) -> list[str]:
    """The command line of `walker.py`; it runs in the folder that is searched."""
    request = {
        **query._asdict(),
        "levels": list(query.levels),
        "gitignore": config.gitignore,
        "max_file_size": config.max_file_size,
        # An isolated interpreter ignores PYTHONPATH and .pth files.
        "path": [package_folder("pathspec")],
    }
    return [sys.executable, "-I", str(_WALKER), json.dumps(request)]


def _find_ripgrep(config: SearchConfig, folder: str) -> str | None:
    """The path of ripgrep; None to search with `walker.py`.

    Args:
        config: The module's settings.
        folder: The session's folder; programs in it are not used.

    Raises:
        ValueError: ripgrep is set but not installed.
        RuntimeError: Not a POSIX system.
    """
    if os.name != "posix":
        raise RuntimeError("tool-search: needs a POSIX system")
    program = None if config.engine == "python" else find_program("rg", folder)
    if program is None and config.engine == "ripgrep":
        raise ValueError(
            "tool-search: 'engine' is 'ripgrep', but no 'rg' is on PATH outside the project"
        )
    return program


def _levels_above(folder: str) -> list[str]:
    """Folder names from the top of the repository down to `folder`; empty outside one."""
    path = Path(folder)
    for top in (path, *path.parents):
        if (top / ".git").exists():
            return list(path.relative_to(top).parts)
    return []


# -- the two tools as models see them ----------------------------------------------------


_ENCODINGS = {b"\xff\xfe": "utf-16-le", b"\xfe\xff": "utf-16-be"}
_MARK = b"\xef\xbb\xbf"


class _Lines:
    """Numbers and a digest of the lines that were reported of a file; they come in order."""

    def __init__(self) -> None:
        self._numbers = array("Q")
        self._digest = hashlib.blake2b()

    def add(self, number: int, line: bytes) -> None:
        self._numbers.append(number)
        self._digest.update(_framed(line))

    def is_in(self, folder: int, path: str) -> bool:
        digest = hashlib.blake2b()
        numbers = iter(self._numbers)
        try:
            with open(open_below(folder, path), "rb") as file:
                next_one = next(numbers, None)
                for number, line in enumerate(_decoded(file), 1):
                    if next_one is None:
                        break
                    if number == next_one:
                        digest.update(_framed(line))
                        next_one = next(numbers, None)
        except OSError:
            return False
        return digest.digest() == self._digest.digest()


def _framed(line: bytes) -> bytes:
    line = line.removesuffix(b"\n")
    return b"%d:" % len(line) + line


def _decoded(file: Iterable[bytes]) -> Iterator[bytes]:
    """The lines of a file in UTF-8, as ripgrep reads them."""
    lines = iter(file)
    first = next(lines, b"")
    encoding = _ENCODINGS.get(first[:2])
    if encoding is None:
        yield first.removeprefix(_MARK)
        yield from lines
        return
    text = b"".join(itertools.chain([first[2:]], lines)).decode(encoding, "replace")
    yield from text.encode("utf-8", "replace").split(b"\n")


def _files_missing_in(folder: int, paths: Iterable[str]) -> set[str]:
    """Those of `paths` that are not regular files in the open folder."""
    missing: set[str] = set()
    for path in paths:
        try:
            os.close(open_below(folder, path))
        except OSError:
            missing.add(path)
    return missing


_LONGEST = 64 * 1024 * 1024
"""Longest line of the engine's output to wait for, in bytes."""


class Line(NamedTuple):
    """A line of a file, a match or context.

    Attributes:
        path: The file, below the folder.
        number: The line's number, from 1.
        text: Its text without the line end.
        is_match: Whether it matches; otherwise it is context.
        column: Where the match starts, in characters.
        raw: Its bytes.
    """

    path: str
    number: int
    text: str
    is_match: bool
    column: int
    raw: bytes


class Collector:
    """Collect an engine's output and signal when there is enough.

    Args:
        separator: What ends a record: a newline for matches, NUL for files.
        take: Called with every record; returns True when no more is needed.

    Attributes:
        full: Set once no more is needed.
        complaints: Output other than records, such as errors in the pattern.
    """

    def __init__(self, separator: bytes, take: Callable[[bytes], bool]) -> None:
        self.full = asyncio.Event()
        self.complaints: list[str] = []
        self._separator = separator
        self._take = take
        self._rest = b""

    def feed(self, data: bytes) -> None:
        """The next piece of output."""
        if self.full.is_set():
            return
        *records, self._rest = (self._rest + data).split(self._separator)
        for record in records:
            if self._separator == b"\n" and not record.startswith(b"{"):
                self.complaints.append(record.decode("utf-8", "replace"))
            elif self._take(record):
                self.full.set()
                return
        if len(self._rest) > _LONGEST:
            self.full.set()


def read_line(record: bytes) -> Line | None:
    """A record of `rg --json`, if it is a line of a file."""
    event: dict[str, Any] = json.loads(record)
    if event["type"] not in ("match", "context"):
        return None
    data = event["data"]
    is_match = event["type"] == "match"
    raw = _bytes(data["lines"])
    text = raw.decode("utf-8", "replace")
    start: int = data["submatches"][0]["start"] if is_match and data["submatches"] else 0
    column = len(text.encode("utf-8", "replace")[:start].decode("utf-8", "replace"))
    return Line(
        path=_to_path(_bytes(data["path"])),
        number=data["line_number"],
        text=text.rstrip("\r\n"),
        is_match=is_match,
        column=column,
        raw=raw,
    )


def _bytes(value: dict[str, str]) -> bytes:
    """The bytes of a value; those that are not UTF-8 are in base64."""
    if "text" in value:
        return value["text"].encode("utf-8", "surrogatepass")
    return base64.b64decode(value["bytes"])


def _to_path(name: bytes) -> str:
    """The path in a record of either kind."""
    return os.fsdecode(name).removeprefix("./")


def _format_lines(lines: list[Line], longest: int, *, context: bool) -> Iterator[str]:
    """`path:12:text` for matches, `path-13-text` for context, `--` where lines are left out."""
    last: Line | None = None
    for line in lines:
        if context and last is not None:
            follows = line.path == last.path and line.number == last.number + 1
            if not follows:
                yield "--"
        mark = ":" if line.is_match else "-"
        yield f"{printable(line.path)}{mark}{line.number}{mark}{_cut(line, longest)}"
        last = line


def _cut(line: Line, longest: int) -> str:
    """The line, or the part of it around the match."""
    text = line.text
    if len(text) <= longest:
        return printable(text)
    begin = max(0, min(line.column - longest // 4, len(text) - longest))
    end = begin + longest
    before = "…" if begin else ""
    after = "…" if end < len(text) else ""
    return f"{before}{printable(text[begin:end])}{after} [line of {len(text)} characters]"


def printable(text: str) -> str:
    """Text that fits on one line and can be stored: no other line ends, no lone surrogates."""
    return re.sub(
        r"[\n\r\x0b\x0c\x1c-\x1e\x85\u2028\u2029\ud800-\udfff]",
        lambda match: ascii(match[0])[1:-1],
        text,
    )


_MAX_ALTERNATIVES = 256


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
    lines = [re.sub(r"^([!#])", r"\\\1", alternative) for alternative in alternatives(pattern)]
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
        match = re.search(r"\{([^{}]*,[^{}]*)\}", text)
        if match is None:
            done[text] = None
        else:
            head, tail = text[: match.start()], text[match.end() :]
            pending += [f"{head}{choice}{tail}" for choice in match[1].split(",")]
        if len(done) + len(pending) > _MAX_ALTERNATIVES:
            raise BadGlob(f"{pattern!r} has more than {_MAX_ALTERNATIVES} alternatives")
    return list(done)


_PATH = parameter("string", "Folder or file to search; default: the working directory")
_MAX_CONTEXT = 50


class SearchFailed(Exception):
    """The engine ended without a result; the message is for the model."""


class Place:
    """The place of a search: an open folder, and optionally a single file in it."""

    def __init__(self, location: Location) -> None:
        status = location.stat()
        self.file = location.name if stat.S_ISREG(status.st_mode) else None
        flags = os.O_RDONLY | getattr(os, "O_DIRECTORY", 0)
        if self.file is None:
            self.folder = location.open(flags)
            self.levels = _levels_above(location.path)
        else:
            here = Location(location.path, location.dir_fd, ".")
            self.folder = here.open(flags)
            self.levels = []

    def __enter__(self) -> Place:
        return self

    def __exit__(self, *_: object) -> None:
        os.close(self.folder)


class Searcher:
    """Run a session's searches, each in a process with a time limit."""

    def __init__(self, coordinator: Any, config: SearchConfig) -> None:
        self.config = config
        self._readable = Grants(
            coordinator, config.allowed_read_paths, setting="allowed_read_paths"
        )
        self.ripgrep = _find_ripgrep(config, self._readable.base)
        self._runner = ProcessRunner()

    async def close(self) -> None:
        """End running searches."""
        await self._runner.close()

    def locate(self, path: str) -> Location:
        """Resolve a path in the allowed folders. Raises PathError, OSError."""
        return self._readable.guard.locate(path)

    async def run(self, place: Place, query: Query, collector: Collector) -> None:
        """Search until the collector is full or the search is done.

        Raises:
            SearchFailed: The time limit is reached, or the pattern is invalid.
            CommandError: The engine cannot be started.
        """
        if self.ripgrep is not None:
            argv = _ripgrep_command(self.ripgrep, self.config, query)
        else:
            argv = _walker_command(self.config, query)
        command = Command(argv, minimal_environment(), place.folder)
        search = asyncio.ensure_future(
            self._runner.run(command, timeout=self.config.timeout, output=collector.feed)
        )
        full = asyncio.ensure_future(collector.full.wait())
        try:
            await asyncio.wait({search, full}, return_when=asyncio.FIRST_COMPLETED)
        finally:
            full.cancel()
            if not search.done():
                search.cancel()
                with contextlib.suppress(asyncio.CancelledError):
                    await search
        if search.cancelled():
            return
        ended = search.result()
        if ended.timed_out:
            seconds = self.config.timeout
            raise SearchFailed(f"time limit of {seconds:g} s reached; search a smaller folder")
        # ripgrep exits with 1 if nothing is found.
        if ended.exit_code not in (0, 1) and collector.complaints:
            raise SearchFailed("\n".join(collector.complaints[-6:]))


class SearchTool(CheckedTool):
    """A tool that searches."""

    failures = (PathError, CommandError, BadGlob, SearchFailed, OSError)

    def __init__(self, searcher: Searcher) -> None:
        self._searcher = searcher
        self._config = searcher.config

    @property
    @abstractmethod
    def description(self) -> str:
        """The description for the model."""

    async def run(self, values: dict[str, Any]) -> ToolResult:
        located = self._searcher.locate(values.get("path", "."))
        with located as location, Place(location) as place:
            return ToolResult(output=await self.search(place, values))

    def describe_failure(self, error: Exception, values: dict[str, Any]) -> str:
        if not isinstance(error, OSError):
            return str(error)
        reason = error.strerror or type(error).__name__
        return f"{values.get('path', '.')!r}: {reason.lower()}"

    @abstractmethod
    async def search(self, place: Place, values: dict[str, Any]) -> str:
        """Return the text for the model. Raises one of `failures`."""

    async def _confirm(self, confirm: Callable[[], int]) -> list[str]:
        """Check the results of ripgrep, which opens files by name; a note on those left out."""
        changed = 0 if self._searcher.ripgrep is None else await in_thread(confirm)
        if not changed:
            return []
        files = "file that was" if changed == 1 else "files that were"
        return ["", f"[left out {changed} {files} changed or moved during the search]"]

    def _most(self, values: dict[str, Any]) -> int:
        return min(values.get("limit", self._config.max_results), self._config.max_results)


class Grep(SearchTool):
    name = "grep"
    # The names in published tools.
    input_aliases: ClassVar[Mapping[str, str]] = {
        "-i": "ignore_case",
        "-C": "context",
        "head_limit": "limit",
    }
    input_schema: ClassVar[dict[str, Any]] = object_schema(
        "pattern",
        pattern=parameter("string", "Regular expression to search for"),
        path=_PATH,
        glob=parameter(
            "string", "Only files whose path matches, such as '*.py' or 'src/**/*.{js,ts}'"
        ),
        ignore_case=parameter("boolean", "Ignore case"),
        context=parameter("integer", "Lines to show before and after each match", minimum=0),
        output_mode=parameter(
            "string",
            "content: matching lines (default); files: files with a match; "
            "count: number of matching lines in each file",
            enum=["content", "files", "count"],
        ),
        limit=parameter("integer", "Maximum number of results", minimum=1),
        offset=parameter("integer", "Number of results to skip, to continue after them", minimum=0),
    )

    @property
    def description(self) -> str:
        dialect = "Python's" if self._searcher.ripgrep is None else "ripgrep's"
        return (
            f"Search files for a regular expression ({dialect} syntax); results are sorted by path. Skips files ignored "
            "by .gitignore, binary files and very large files."
        )

    async def search(self, place: Place, values: dict[str, Any]) -> str:
        mode = values.get("output_mode", "content")
        if mode not in ("content", "files", "count"):
            raise InvalidInput(f"'output_mode' must be content, files or count, not {mode!r}")
        if not values["pattern"] or "\0" in values["pattern"]:
            raise InvalidInput("the pattern is empty or contains a NUL character")
        path_filter = matcher(values["glob"]) if values.get("glob") else None
        results = _Found(mode, values.get("offset", 0), self._most(values), path_filter)
        context = min(values.get("context", 0), _MAX_CONTEXT) if mode == "content" else 0
        query = Query(
            pattern=values["pattern"],
            ignore_case=values.get("ignore_case", False),
            context=context,
            max_matches=1 if mode == "files" else 1_000_000,
            file=place.file,
            levels=place.levels,
        )
        collector = Collector(b"\n", results.take)
        await self._searcher.run(place, query, collector)
        notes = await self._confirm(lambda: results.confirm(place.folder))
        lines = [*results.report(self._config.max_line, context=context > 0), *notes]
        if not lines:
            return "[no matches]"
        if collector.full.is_set():
            following = results.offset + results.max_results
            lines += ["", f"[more results: narrow the search, or continue with offset {following}]"]
        return "\n".join(lines)


class _Found:
    """Results of a text search, from number `offset` to `offset + most`."""

    def __init__(
        self, mode: str, offset: int, max_results: int, path_filter: Callable[[str], bool] | None
    ) -> None:
        self.offset = offset
        self.max_results = max_results
        self._mode = mode
        self._wanted = path_filter
        self._lines: list[Line] = []
        self._matches = 0
        self._counts: Counter[str] = Counter()
        self._reported: defaultdict[str, _Lines] = defaultdict(_Lines)
        self._missing: set[str] = set()

    def take(self, record: bytes) -> bool:
        line = read_line(record)
        if line is None or (self._wanted is not None and not self._wanted(line.path)):
            return False
        last = self.offset + self.max_results
        if self._mode == "content":
            if line.is_match:
                self._matches += 1
            if self._matches > last:
                return True
            # The first match shown may be preceded by context of earlier ones.
            if self._matches > self.offset or not self.offset:
                self._lines.append(line)
                self._reported[line.path].add(line.number, line.raw)
            return False
        if line.is_match:
            self._counts[line.path] += 1
            self._reported[line.path].add(line.number, line.raw)
        return len(self._counts) > last

    def confirm(self, folder: int) -> int:
        """Leave out files that do not have what was found in them; returns how many."""
        paths = {line.path for line in self._lines} if self._mode == "content" else self._shown()
        self._missing = {path for path in paths if not self._reported[path].is_in(folder, path)}
        return len(self._missing)

    def _shown(self) -> list[str]:
        paths = list(self._counts)[self.offset : self.offset + self.max_results]
        return [path for path in paths if path not in self._missing]

    def report(self, longest: int, *, context: bool) -> list[str]:
        if self._mode == "content":
            lines = [line for line in self._lines if line.path not in self._missing]
            return list(_format_lines(lines, longest, context=context))
        if self._mode == "files":
            return [printable(path) for path in self._shown()]
        return [f"{printable(path)}:{self._counts[path]}" for path in self._shown()]


class Glob(SearchTool):
    name = "glob"
    input_schema: ClassVar[dict[str, Any]] = object_schema(
        "pattern",
        pattern=parameter("string", "Pattern for paths below the folder"),
        path={**_PATH, "description": "Folder to search; default: the working directory"},
        limit=parameter("integer", "Maximum number of files", minimum=1),
        offset=parameter("integer", "Number of files to skip", minimum=0),
    )

    @property
    def description(self) -> str:
        return (
            "Find files by name, sorted by path: '*.py' at any depth, 'src/*.py' only in "
            "src, 'src/**/test_*.{js,ts}' anywhere below src. Skips files ignored by "
            ".gitignore."
        )

    async def search(self, place: Place, values: dict[str, Any]) -> str:
        if place.file is not None:
            raise InvalidInput("'path' must be a folder, not a file")
        path_filter = matcher(values["pattern"])
        offset, most = values.get("offset", 0), self._most(values)
        paths: list[str] = []

        def take(record: bytes) -> bool:
            path = _to_path(record)
            if path_filter(path):
                paths.append(path)
            return len(paths) > offset + most

        collector = Collector(b"\0", take)
        await self._searcher.run(place, Query(None, levels=place.levels), collector)
        page = paths[offset : offset + most]
        missing: set[str] = set()

        def confirm() -> int:
            missing.update(_files_missing_in(place.folder, page))
            return len(missing)

        notes = await self._confirm(confirm)
        lines = [*(printable(path) for path in page if path not in missing), *notes]
        if not lines:
            return "[no matching files]"
        if collector.full.is_set():
            lines += ["", f"[more files: continue with offset {offset + most}]"]
        return "\n".join(lines)


async def mount(coordinator: Any, settings: SearchConfig) -> Callable[[], Awaitable[None]]:
    """Mount `grep` and `glob`; settings as in `SearchConfig`.

    Returns:
        A cleanup function that ends running searches.

    Raises:
        ValueError: The config is invalid, or ripgrep is set but not installed.
        RuntimeError: Not a POSIX system.
    """
    searcher = Searcher(coordinator, settings)
    for tool in (Grep(searcher), Glob(searcher)):
        await coordinator.mount("tools", tool, name=tool.name)
    return searcher.close
