"""The search engines: ripgrep if installed, otherwise our own walker; both print the same."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from amplifier_modules.tool_search.config import SearchConfig
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.programs import find_program, package_folder

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


class Ripgrep:
    """Search with ripgrep.

    Args:
        program: Its absolute path.
        config: The module's settings.
    """

    dialect = "ripgrep's syntax"
    opens_by_name = True

    def __init__(self, program: str, config: SearchConfig) -> None:
        self._program = program
        self._config = config

    def command(self, query: Query) -> list[str]:
        """The command line; it runs in the folder that is searched."""
        options = [*_RIPGREP, f"--max-filesize={self._config.max_file_size}"]
        if not self._config.gitignore:
            options.append("--no-ignore")
        elif not query.levels:
            # Outside a repository, .gitignore files further up do not count.
            options.append("--no-ignore-parent")
        if query.pattern is None:
            return [self._program, *options, "--files", "--null"]
        options += ["--json", f"--max-count={query.max_matches}", f"--context={query.context}"]
        if query.ignore_case:
            options.append("--ignore-case")
        target = [] if query.file is None else [query.file]
        return [self._program, *options, f"--regexp={query.pattern}", "--", *(target or ["."])]


class Walker:
    """Search with `walker.py`."""

    dialect = "Python's syntax"
    opens_by_name = False

    def __init__(self, config: SearchConfig) -> None:
        self._config = config

    def command(self, query: Query) -> list[str]:
        """The command line; it runs in the folder that is searched."""
        request = {
            **query._asdict(),
            "levels": list(query.levels),
            "gitignore": self._config.gitignore,
            "max_file_size": self._config.max_file_size,
            # An isolated interpreter ignores PYTHONPATH and .pth files.
            "path": [package_folder("pathspec")],
        }
        return [sys.executable, "-I", str(_WALKER), json.dumps(request)]


def choose_engine(config: SearchConfig, folder: str) -> Ripgrep | Walker:
    """Choose the engine by the config.

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
    if program is not None:
        return Ripgrep(program, config)
    if config.engine == "ripgrep":
        raise ValueError(
            "tool-search: 'engine' is 'ripgrep', but no 'rg' is on PATH outside the project"
        )
    return Walker(config)


def levels_above(folder: str) -> list[str]:
    """Folder names from the top of the repository down to `folder`; empty outside one."""
    path = Path(folder)
    for top in (path, *path.parents):
        if (top / ".git").exists():
            return list(path.relative_to(top).parts)
    return []
