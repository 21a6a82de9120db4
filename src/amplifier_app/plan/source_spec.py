"""The forms of module sources.

    ./folder   ../folder   /folder   ~/folder   file:///folder   ./file.py
    git+https://…   git+ssh://…   git+file:///…      @ref   #subdirectory=…
    ./x.whl   /x.tar.gz   file:///x.zip   https://…/x.whl      #sha256=…   #subdirectory=…
    package   package[extra]>=1.2,<2

Parsing a source uses neither disk nor network. Anything that git or ssh could take for an option,
that leaves a folder, or that uses a transport which runs commands is refused here, before other code
sees it.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import NamedTuple, TypeAlias

GIT_SCHEMES = ("https", "ssh", "file")

ARCHIVE_SUFFIXES = (
    *(".whl", ".zip", ".tar", ".tar.gz", ".tgz"),
    *(".tar.bz2", ".tbz2", ".tar.xz", ".txz"),
)

_COMMIT = r"[0-9a-f]{40}|[0-9a-f]{64}"


class SourceSyntaxError(ValueError):
    """A source that is invalid or not allowed."""

    def __init__(self, message: str, hint: str | None = None) -> None:
        super().__init__(f"{message}; {hint}" if hint else message)
        self.message = message
        self.hint = hint


class FolderSource(NamedTuple):
    """A folder or a single Python file on this machine; `path` is absolute."""

    path: Path

    @property
    def text(self) -> str:
        return str(self.path)


class GitSource(NamedTuple):
    """A git repository at one commit.

    Attributes:
        text: The source as it was written.
        url: The URL for git, without `git+`.
        ref: Branch, tag or full commit; None is the repository's own default branch.
        subdirectory: The folder inside it, relative, without `..`; empty is its root.
    """

    text: str
    url: str
    ref: str | None = None
    subdirectory: str = ""

    @property
    def is_commit(self) -> bool:
        """Whether `ref` is a full commit, which never changes."""
        return self.ref is not None and re.fullmatch(_COMMIT, self.ref) is not None

    @property
    def is_local(self) -> bool:
        """Whether it is available without a network."""
        return self.url.startswith("file:")

    @property
    def shown(self) -> str:
        """The source without a password."""
        return without_password(self.text)

    @property
    def name(self) -> str:
        """The last part of the URL as a name for folders."""
        last = self.url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        return re.sub(r"[^A-Za-z0-9_]", "_", last).strip("_") or "repository"


class ArchiveSource(NamedTuple):
    """A wheel, a zip or a tar archive.

    Attributes:
        text: The source as it was written; a path is absolute.
        location: A path on this machine or a URL.
        file_name: The last part of it, as a plain name.
        sha256: The expected hash of the archive, in lower case; empty for any.
        subdirectory: The folder inside it, relative, without `..`; empty is its root.
    """

    text: str
    location: str
    file_name: str
    sha256: str = ""
    subdirectory: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it is available without a network."""
        return "://" not in self.location

    @property
    def is_wheel(self) -> bool:
        return self.file_name.lower().endswith(".whl")

    @property
    def shown(self) -> str:
        """The source without a password."""
        return without_password(self.text)


class PackageSource(NamedTuple):
    """A distribution that is installed, or available from the package index.

    Attributes:
        name: Its name as it was written.
        extras: Its extras, sorted.
        versions: The accepted versions, such as `">=1.2,<2"`; empty is the installed one.
    """

    name: str
    extras: tuple[str, ...] = ()
    versions: str = ""

    @property
    def text(self) -> str:
        extras = f"[{','.join(self.extras)}]" if self.extras else ""
        return f"{self.name}{extras}{self.versions}"


Source: TypeAlias = FolderSource | GitSource | ArchiveSource | PackageSource


def without_password(url: str) -> str:
    """The URL with passwords, tokens in place of a user name, and query values masked."""
    url = re.sub(r"(?<=https://)[^/@\s:]+(?=@)", "***", url)
    url = re.sub(r"(?<=://)([^/@\s:]*):[^/@\s]*(?=@)", r"\1:***", url)
    address, query, rest = url.partition("?")
    if not query or "://" not in address:
        return url
    values, mark, fragment = rest.partition("#")
    return f"{address}?{re.sub(r'=[^&]*', '=***', values)}{mark}{fragment}"
