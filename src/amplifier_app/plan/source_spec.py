"""The forms of module sources, and of the packages that modules require.

    ./folder   ../folder   /folder   ~/folder   file:///folder   ./file.py
    git+https://…   git+ssh://…   git+file:///…      @ref   #subdirectory=…
    ./x.whl   /x.tar.gz   file:///x.zip   https://…/x.whl      #sha256=…   #subdirectory=…
    package   package[extra]>=1.2,<2

Parsing a source uses neither disk nor network. Anything that git or ssh could take for an option,
that leaves a folder, or that uses a transport which runs commands is refused here, before other code
sees it.
"""

from __future__ import annotations

import os
import re
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, TypeAlias
from urllib.parse import unquote, urlsplit

from amplifier_app.base.installed import OURS, normalised
from amplifier_support.named_tuple import NamedTuple

if TYPE_CHECKING:
    from urllib.parse import SplitResult

    from packaging.requirements import Requirement

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
        """True if `ref` is a full commit, which never changes."""
        return self.ref is not None and re.fullmatch(_COMMIT, self.ref) is not None

    @property
    def is_local(self) -> bool:
        """True if it is available without a network."""
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
        """True if it is available without a network."""
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


_REF = r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*"
_HOST = r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*|\[[0-9A-Fa-f:.]+\])(?::\d{1,5})?"
_USER = r"[A-Za-z0-9_][^/@\s]*"
LOOPBACK = ("localhost", "127.0.0.1", "::1")


_PACKAGE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_DRIVE = r"[A-Za-z]:[\\/]"


def parse_source(text: str, folder: Path) -> Source:
    """Parse a source.

    Args:
        text: The source as written.
        folder: The folder of the plan, which relative paths start from.

    Raises:
        SourceSyntaxError: It is invalid or not allowed.
    """
    if not _is_plain(text):
        raise SourceSyntaxError("the source contains white space or control characters")
    if re.fullmatch(_PACKAGE, text) and not text.lower().endswith(ARCHIVE_SUFFIXES):
        return PackageSource(text)
    if not is_path(text):
        return parse(text)
    address, _, fragment = text.partition("#")
    if address.lower().endswith(ARCHIVE_SUFFIXES):
        return _parse_archive_path(_absolute(folder, address), fragment)
    return FolderSource(_absolute(folder, text))


def is_path(text: str) -> bool:
    """Return True if a source is a local path."""
    return (
        text in (".", "..", "~")
        or text.startswith(("./", "../", "/", "~/"))
        or re.match(_DRIVE, text) is not None
    )


def _is_plain(text: str) -> bool:
    return text == text.strip() and all(
        c == " " or (c.isprintable() and not c.isspace()) for c in text
    )


def _absolute(folder: Path, text: str) -> Path:
    path = os.path.normpath(folder / os.path.expanduser(text))
    # The absolute path is a source, too.
    if not _is_plain(path):
        raise SourceSyntaxError(
            f"the path {path!r} contains control characters, or white space at its end",
            "rename the folder",
        )
    return Path(path)


def parse(text: str) -> Source:
    """Parse a source that is neither a path nor a package name alone.

    Raises:
        SourceSyntaxError: It is invalid or not allowed.
    """
    if text.startswith("git+"):
        return _parse_git(text)
    if text.startswith("file://"):
        return _parse_file_url(text)
    if re.match(r"https?://", text):
        return _parse_archive_url(text)
    if re.match(r"[A-Za-z0-9][A-Za-z0-9._-]* *[\[<>=!~(;]", text) and "://" not in text:
        return _parse_package(text)
    raise SourceSyntaxError(f"invalid source {without_password(text)!r}", _hint(text))


def _hint(text: str) -> str:
    if re.match(r"[\w.-]+@[\w.-]+:", text):
        user_host, _, path = text.partition(":")
        return f"write 'git+ssh://{user_host}/{path}'"
    if text.startswith("ssh://"):
        return f"for a git repository, write 'git+{without_password(text)}'"
    if " @ " in text:
        return "write only the part after the '@'"
    if "://" in text:
        return "use file://, https://, git+https://, git+ssh:// or git+file://"
    if "/" in text or "\\" in text:
        return f"for a folder next to the plan, write './{text}'"
    if text.lower().endswith(ARCHIVE_SUFFIXES):
        return f"for an archive next to the plan, write './{text}'"
    return (
        "write './FOLDER', '/FOLDER', 'git+https://…@REF', 'https://…/ARCHIVE', or a package name"
    )


# -- packages ----------------------------------------------------------------------------


def _parse_package(text: str) -> PackageSource:
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        requirement = Requirement(text)
    except InvalidRequirement as error:
        reason = str(error).partition("\n")[0]
        raise SourceSyntaxError(
            f"{text!r} is not a valid requirement: {reason}", "write 'package>=1.2,<2'"
        ) from None
    if requirement.url or requirement.marker:
        raise SourceSyntaxError(
            f"{text!r} has more than a name, extras and versions",
            "write only the part after the '@'"
            if requirement.url
            else "remove the ';' and what follows",
        )
    return PackageSource(
        requirement.name, tuple(sorted(requirement.extras)), str(requirement.specifier)
    )


# -- requirements ------------------------------------------------------------------------


def check_requirement(text: str) -> GitSource | None:
    """The repository of a requirement; None if it has versions instead.

    Raises:
        SourceSyntaxError: It is invalid or not allowed.
    """
    parsed = parsed_requirement(text)
    if parsed.url is None:
        return None
    if not parsed.url.startswith("git+"):
        raise SourceSyntaxError(
            f"unsupported source for a requirement: {without_password(parsed.url)!r}",
            f"write '{parsed.name}>=1.0' or '{parsed.name} @ git+https://…'",
        )
    source = parse_source(parsed.url, Path("/"))
    assert isinstance(source, GitSource)
    return source


def parsed_requirement(text: str) -> Requirement:
    """Parse a requirement.

    Raises:
        SourceSyntaxError: It is invalid, or names a part of Amplifier itself.
    """
    from packaging.requirements import InvalidRequirement, Requirement

    try:
        parsed = Requirement(text)
        valid = text.isprintable()
    except InvalidRequirement:
        parsed, valid = None, False
    if parsed is None or not valid:
        raise SourceSyntaxError(
            f"{without_password(text)!r} is not a valid requirement",
            "write 'package', 'package>=1.2,<2' or 'package @ git+https://…'",
        )
    if normalised(parsed.name) in OURS:
        raise SourceSyntaxError(
            f"{parsed.name!r} is part of Amplifier and cannot be required", "remove it"
        )
    return parsed


# -- archives ----------------------------------------------------------------------------


def _parse_archive_path(path: Path, fragment: str) -> ArchiveSource:
    """Parse the source of a local archive.

    Args:
        path: The archive, absolute.
        fragment: The part after `#`.

    Raises:
        SourceSyntaxError: The fragment is invalid or not allowed.
    """
    sha256, subdirectory = _archive_fragment(fragment)
    text = f"{path}#{fragment}" if fragment else str(path)
    return ArchiveSource(text, str(path), path.name, sha256, subdirectory)


def _parse_file_url(url: str) -> FolderSource | ArchiveSource:
    parts = urlsplit(url)
    path = unquote(parts.path)
    _check_path(path)
    if parts.netloc not in ("", "localhost") or not path.startswith("/"):
        raise SourceSyntaxError(f"{url!r} is not a local path", "write 'file:///PATH'")
    archive = path.lower().endswith(ARCHIVE_SUFFIXES)
    if parts.query or (parts.fragment and not archive):
        raise SourceSyntaxError(f"{url!r} has a query or a fragment", "write 'file:///PATH'")
    return _parse_archive_path(Path(path), parts.fragment) if archive else FolderSource(Path(path))


def _parse_archive_url(text: str) -> ArchiveSource:
    parts = _split(text)
    _check_authority(parts.scheme, unquote(parts.netloc))
    path = unquote(parts.path)
    _check_path(path)
    if parts.scheme == "http" and parts.hostname not in LOOPBACK:
        raise SourceSyntaxError("http:// is not secure", "use https://")
    if not path.lower().endswith(ARCHIVE_SUFFIXES):
        raise SourceSyntaxError(
            f"{without_password(text)!r} is not an archive ({', '.join(ARCHIVE_SUFFIXES)})",
            f"for a git repository, write 'git+{without_password(text)}'",
        )
    sha256, subdirectory = _archive_fragment(unquote(parts.fragment))
    location = text.partition("#")[0]
    return ArchiveSource(text, location, path.rsplit("/", 1)[-1], sha256, subdirectory)


def _archive_fragment(fragment: str) -> tuple[str, str]:
    values = _fragment(fragment, ("sha256", "subdirectory", "egg"))
    sha256 = values.get("sha256", "")
    if "sha256" in values and not re.fullmatch(r"[0-9a-fA-F]{64}", sha256):
        raise SourceSyntaxError(
            f"{sha256!r} is not a SHA-256 hash", "expected 64 hexadecimal digits"
        )
    return sha256.lower(), _subdirectory(values.get("subdirectory", ""))


def _check_path(path: str) -> None:
    if not path.isprintable():
        raise SourceSyntaxError("the source contains white space or control characters")


# -- git ---------------------------------------------------------------------------------


def _parse_git(text: str) -> GitSource:
    if "\\" in text or " " in text:
        raise SourceSyntaxError(
            "a git URL cannot contain spaces or backslashes", "encode a space as %20"
        )
    address, _, fragment = text.removeprefix("git+").partition("#")
    parts = _split(address)
    if parts.scheme not in GIT_SCHEMES:
        scheme = parts.scheme or re.split(r"[:/]", address, maxsplit=1)[0]
        raise SourceSyntaxError(
            f"git sources over {scheme!r} are not allowed",
            "use git+https://, git+ssh:// or git+file://",
        )
    if parts.query:
        raise SourceSyntaxError("a git URL cannot have a query", "remove the '?' and what follows")
    _check_authority(parts.scheme, unquote(parts.netloc))
    path, ref = parts.path, None
    if "@" in path:
        path, _, ref = path.rpartition("@")
        _check_ref(unquote(ref))
        ref = unquote(ref)
    decoded = unquote(path)
    if not decoded.strip("/") or decoded.startswith(("/-", "//")) or not decoded.isprintable():
        raise SourceSyntaxError("the git URL has no repository", "write 'git+https://HOST/REPO'")
    url = f"{parts.scheme}://{parts.netloc}{path}"
    values = _fragment(unquote(fragment), ("subdirectory", "egg"))
    return GitSource(text, url, ref, _subdirectory(values.get("subdirectory", "")))


def _split(address: str) -> SplitResult:
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise SourceSyntaxError(f"the URL is not valid: {error}") from None
    return parts


def _check_authority(scheme: str, authority: str) -> None:
    if scheme == "file":
        if authority not in ("", "localhost"):
            raise SourceSyntaxError(
                "a git+file:// URL cannot have a host", "write 'git+file:///PATH'"
            )
        return
    user, _, host = authority.rpartition("@")
    # A leading dash would be an ssh option; anything unusual is refused.
    if not re.fullmatch(_HOST, host) or (user and not re.fullmatch(_USER, user)):
        raise SourceSyntaxError(f"{without_password('//' + authority)[2:]!r} is not a host")


def _check_ref(ref: str) -> None:
    if (
        not re.fullmatch(_REF, ref)
        or ".." in ref
        or "@{" in ref
        or ref.endswith((".", "/", ".lock"))
    ):
        raise SourceSyntaxError(f"{ref!r} is not a branch, tag or commit")


# -- after '#' ---------------------------------------------------------------------------


def _fragment(fragment: str, known: tuple[str, ...]) -> dict[str, str]:
    values: dict[str, str] = {}
    for part in fragment.split("&") if fragment else ():
        name, _, value = part.partition("=")
        if name not in known:
            raise SourceSyntaxError(f"unknown key {name!r} after '#'", f"write '#{known[0]}=…'")
        values[name] = value
    return values


def _subdirectory(path: str) -> str:
    pure = PurePosixPath(path)
    if pure.is_absolute() or ".." in pure.parts or "\\" in path or not path.isprintable():
        raise SourceSyntaxError(f"the subdirectory {path!r} is outside the source")
    if any(part.startswith("-") or part == ".git" for part in pure.parts):
        raise SourceSyntaxError(f"{path!r} is not allowed as a subdirectory")
    return "" if str(pure) == "." else str(pure)
