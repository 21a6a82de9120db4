"""Source texts of a plan: `./folder`, `/folder`, `file://…`, `git+…@ref#subdirectory=…`, `package`.

Reading one touches neither disk nor network. What could be taken for an option by git or
ssh, leave a folder, or use a transport that runs commands is refused here, before
anything else sees it.
"""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath
from typing import NamedTuple, TypeAlias

GIT_SCHEMES = ("https", "ssh", "file")

_PACKAGE = r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?"
_REF = r"[A-Za-z0-9_][A-Za-z0-9_./+@-]*"
_HOST = r"[A-Za-z0-9_\[][A-Za-z0-9_.:\[\]-]*"
_USER = r"[A-Za-z0-9_][^/@\s]*"
_DRIVE = r"[A-Za-z]:[\\/]"
_COMMIT = r"[0-9a-f]{40}"


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
    def shown(self) -> str:
        """The source without a password."""
        return without_password(self.text)

    @property
    def name(self) -> str:
        """The last part of the URL as a name for folders."""
        last = self.url.rstrip("/").rsplit("/", 1)[-1].removesuffix(".git")
        return re.sub(r"[^A-Za-z0-9_]", "_", last).strip("_") or "repository"


class PackageSource(NamedTuple):
    """An installed distribution."""

    name: str

    @property
    def text(self) -> str:
        return self.name


Source: TypeAlias = FolderSource | GitSource | PackageSource


def without_password(url: str) -> str:
    """The URL with `user:password@` masked."""
    return re.sub(r"(?<=://)([^/@\s:]*):[^/@\s]*(?=@)", r"\1:***", url)


def parse_source(text: str, folder: Path) -> Source:
    """What a source text means.

    Args:
        text: The text as the plan has it.
        folder: The folder of the plan, from which relative paths start.

    Raises:
        SourceSyntaxError: It is not understood or not allowed.
    """
    if text != text.strip() or any((c.isspace() and c != " ") or not c.isprintable() for c in text):
        raise SourceSyntaxError("the source holds white space or control characters")
    if text.startswith("git+"):
        return _parse_git(text)
    if text.startswith("file://"):
        return FolderSource(_file_url_path(text))
    if (
        text in (".", "..", "~")
        or text.startswith(("./", "../", "/", "~/"))
        or re.match(_DRIVE, text)
    ):
        return FolderSource(_absolute(folder, text))
    if re.fullmatch(_PACKAGE, text):
        return PackageSource(text)
    raise SourceSyntaxError(f"the source {without_password(text)!r} is not understood", _hint(text))


def _hint(text: str) -> str:
    if re.match(r"[\w.-]+@[\w.-]+:", text):
        user_host, _, path = text.partition(":")
        return f"write 'git+ssh://{user_host}/{path}'"
    if text.startswith(("https://", "ssh://")):
        return f"for a git repository write 'git+{without_password(text)}'"
    if "://" in text:
        return "allowed are file:// and git+https://, git+ssh://, git+file://"
    if "/" in text or "\\" in text:
        return f"for a folder beside the plan write './{text}'"
    if re.search(r"[=<>~!\[]", text):
        return "name an installed package without a version"
    return "write './FOLDER', '/FOLDER', 'git+https://…@REF' or the name of an installed package"


def _absolute(folder: Path, text: str) -> Path:
    import os

    return Path(os.path.normpath(folder / Path(text).expanduser()))


def _file_url_path(url: str) -> Path:
    from urllib.parse import unquote, urlsplit

    parts = urlsplit(url)
    if parts.netloc not in ("", "localhost") or not parts.path.startswith("/"):
        raise SourceSyntaxError(f"{url!r} names no path on this machine", "write 'file:///PATH'")
    if parts.query or parts.fragment:
        raise SourceSyntaxError(f"{url!r} has a query or a fragment", "write 'file:///PATH'")
    path = unquote(parts.path)
    if "\0" in path:
        raise SourceSyntaxError("the source holds white space or control characters")
    return Path(path)


def _parse_git(text: str) -> GitSource:
    from urllib.parse import unquote, urlsplit

    if "\\" in text or " " in text:
        raise SourceSyntaxError("a git URL has no spaces and no backslashes", "encode them as %20")
    address, _, fragment = text.removeprefix("git+").partition("#")
    try:
        parts = urlsplit(address)
        _ = parts.port
    except ValueError as error:
        raise SourceSyntaxError(f"the git URL is not valid: {error}") from None
    if parts.scheme not in GIT_SCHEMES:
        scheme = parts.scheme or re.split(r"[:/]", address, maxsplit=1)[0]
        raise SourceSyntaxError(
            f"git sources over {scheme!r} are not allowed",
            "use git+https://, git+ssh:// or git+file://",
        )
    if parts.query:
        raise SourceSyntaxError("a git URL has no query", "remove the part from '?' on")
    _check_authority(parts.scheme, unquote(parts.netloc))
    path, ref = parts.path, None
    if "@" in path:
        path, _, ref = path.rpartition("@")
        _check_ref(unquote(ref))
        ref = unquote(ref)
    decoded = unquote(path)
    if not decoded.strip("/") or decoded.startswith(("/-", "//")) or not decoded.isprintable():
        raise SourceSyntaxError("the git URL names no repository", "write 'git+https://HOST/REPO'")
    url = f"{parts.scheme}://{parts.netloc}{path}"
    return GitSource(text, url, ref, _subdirectory(unquote(fragment)))


def _check_authority(scheme: str, authority: str) -> None:
    if scheme == "file":
        if authority not in ("", "localhost"):
            raise SourceSyntaxError("git+file:// names a host", "write 'git+file:///PATH'")
        return
    user, _, host = authority.rpartition("@")
    # A leading dash would be an option of ssh; anything unusual is not worth the risk.
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


def _subdirectory(fragment: str) -> str:
    if not fragment:
        return ""
    found = ""
    for part in fragment.split("&"):
        name, _, value = part.partition("=")
        if name == "subdirectory":
            found = value
        elif name != "egg":
            raise SourceSyntaxError(f"{name!r} is not known after '#'", "write '#subdirectory=…'")
    pure = PurePosixPath(found)
    if pure.is_absolute() or ".." in pure.parts or "\\" in found or not found.isprintable():
        raise SourceSyntaxError(f"the subdirectory {found!r} leaves the repository")
    if any(part.startswith("-") or part == ".git" for part in pure.parts):
        raise SourceSyntaxError(f"{found!r} is not a subdirectory of a module")
    return "" if str(pure) == "." else str(pure)
