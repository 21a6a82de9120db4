"""Source texts of a plan, and what they mean.

    ./folder   ../folder   /folder   ~/folder   file:///folder   ./file.py
    git+https://…   git+ssh://…   git+file:///…      @ref   #subdirectory=…
    ./x.whl   /x.tar.gz   file:///x.zip   https://…/x.whl      #sha256=…   #subdirectory=…
    package   package[extra]>=1.2,<2

Reading one touches neither disk nor network. What could be taken for an option by git or
ssh, leave a folder, or use a transport that runs commands is refused here, before
anything else sees it.
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
    """A source text that is not understood or not allowed."""

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
        url: What git is given, without `git+`.
        ref: Branch, tag or full commit; None is the repository's own default branch.
        subdirectory: The folder inside it, relative, without `..`; empty is its root.
    """

    text: str
    url: str
    ref: str | None = None
    subdirectory: str = ""

    @property
    def is_commit(self) -> bool:
        """Whether `ref` is a full commit, which never means anything else later."""
        return self.ref is not None and re.fullmatch(_COMMIT, self.ref) is not None

    @property
    def is_local(self) -> bool:
        """Whether it can be reached without a network."""
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
        sha256: What the hash of the archive has to be, in lower case; empty if any will do.
        subdirectory: The folder inside it, relative, without `..`; empty is its root.
    """

    text: str
    location: str
    file_name: str
    sha256: str = ""
    subdirectory: str = ""

    @property
    def is_local(self) -> bool:
        """Whether it can be reached without a network."""
        return "://" not in self.location

    @property
    def is_wheel(self) -> bool:
        return self.file_name.lower().endswith(".whl")

    @property
    def shown(self) -> str:
        """The source without a password."""
        return without_password(self.text)


class PackageSource(NamedTuple):
    """A distribution that is installed, or can be from the package index.

    Attributes:
        name: Its name as it was written.
        extras: Its extras, sorted.
        versions: Which versions will do, such as `">=1.2,<2"`; empty is the installed one.
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
    """The URL with `user:password@`, a token in place of a user and the values of its query
    masked."""
    url = re.sub(r"(?<=https://)[^/@\s:]+(?=@)", "***", url)
    url = re.sub(r"(?<=://)([^/@\s:]*):[^/@\s]*(?=@)", r"\1:***", url)
    address, query, rest = url.partition("?")
    if not query or "://" not in address:
        return url
    values, mark, fragment = rest.partition("#")
    return f"{address}?{re.sub(r'=[^&]*', '=***', values)}{mark}{fragment}"
