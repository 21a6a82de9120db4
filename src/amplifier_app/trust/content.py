"""The content of a project, file by file, and one hash over all of it.

It covers everything below `.amplifier`, what its documents select outside (extended plans, included
files, module folders), and the hooks of other agents, which a plan may import. Nothing else is ever used
on behalf of the project, so excluded folders (`LEFT_OUT`) need not be hashed.

Links are hashed as their target path and never followed. The target of a link below `.amplifier`
is covered as well if it is in the project; a link out of the project is refused.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import stat
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Literal

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.sanitize import visible
from amplifier_support.files import open_regular, system_errors_as
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.project_folders import find_hook_files

MAX_FILES = 10_000
MAX_BYTES = 200 * 1024 * 1024
MAX_TEXT = 64 * 1024
"""Size in bytes up to which the text of a file is kept, so that changes can be shown."""
MAX_TEXTS = 4 * 1024 * 1024
"""Total size in bytes of the text that is kept."""
MAX_DOCUMENT = 1024 * 1024
MAX_SECONDS = 60.0
"""Time limit for finding what documents select."""

LEFT_OUT = frozenset(
    {".git", ".venv", "node_modules", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Folders that other tools change all the time; nothing in them can be imported."""

_BYTE_CODE = "__pycache__"
_CHUNK = 1 << 18

Kind = Literal["file", "executable", "link", "special"]


class Entry(NamedTuple):
    """One file.

    Attributes:
        kind: What it is; `"special"` is a pipe, a socket or a device.
        digest: SHA-256 of its bytes, or of a link's target path.
        size: In bytes.
        text: Its text, if it is text and not too long.
    """

    kind: Kind
    digest: str
    size: int
    text: str | None = None


class Selected(NamedTuple):
    """A file or folder that a document selects.

    Attributes:
        path: Its absolute path.
        document: Whether it is read as a plan, and may select more.
    """

    path: Path
    document: bool = False


class Content(NamedTuple):
    """The content of a project.

    Attributes:
        folder: Its `.amplifier`.
        entries: Sorted by name, which is relative to the project, or absolute if outside it.
        roots: What is covered as a whole, with links resolved: the folder, and what is selected
            outside it.
        documents: Files that are read as plans or settings: name → bytes.
    """

    folder: Path
    entries: Mapping[str, Entry]
    roots: frozenset[Path]
    documents: Mapping[str, bytes]

    @property
    def root(self) -> Path:
        """The project's folder."""
        return self.folder.parent

    @property
    def hash(self) -> str:
        """`"sha256:…"` over names, kinds and bytes."""
        return compute_hash(self.entries)

    def covers(self, path: Path) -> bool:
        """Return True if a file or a folder, with links resolved, is part of it."""
        return _is_below(Path(os.path.realpath(path)), self.roots)

    def find_entry(self, path: Path) -> Entry | None:
        """The entry of a file, with links resolved; None if it is not part of it."""
        return self.entries.get(_name(Path(os.path.realpath(path)), self.root))


def compute_hash(entries: Mapping[str, Entry]) -> str:
    """One hash over names, kinds and bytes."""
    digest = hashlib.sha256()
    for name in sorted(entries):
        entry = entries[name]
        for part in (os.fsencode(name), entry.kind.encode(), entry.digest.encode()):
            # Lengths keep one part from running into the next.
            digest.update(len(part).to_bytes(8, "big") + part)
    return f"sha256:{digest.hexdigest()}"


def read_content(folder: Path, selected_by: Callable[[Path, bytes], Iterable[Selected]]) -> Content:
    """Read the content of a project, without following links or running anything.

    Args:
        folder: Its `.amplifier`.
        selected_by: Returns what a document selects, given its path and bytes.

    Raises:
        ConfigError: It has something that cannot be trusted, is unreadable or too large.
    """
    if folder.is_symlink():
        raise _refusal(folder, "is a link", "Replace the link with a folder.")
    reader = _Reader(folder.parent)
    reader.add(folder, strict=True)
    for file in find_hook_files(folder.parent):
        reader.add(file)
        reader.add(file.parent / "hooks")  # the usual place of their scripts
    # Module folders are covered, whatever their names.
    for module in _folders_in(folder / "modules"):
        reader.add(module, strict=True)
    end = time.monotonic() + MAX_SECONDS
    for path, data in reader.waiting():
        if time.monotonic() > end:
            raise _refusal(
                folder, f"takes longer than {MAX_SECONDS:g} s to read", "Make it smaller."
            )
        for selected in selected_by(path, data):
            reader.add(selected.path, document=selected.document)
    return reader.content(folder)


class _Reader:
    """Collects entries, within the limits."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._entries: dict[str, Entry] = {}
        self._roots: set[Path] = set()
        self._links: list[Path] = []
        self._bytes = 0
        self._texts = 0
        self._seen = 0
        self.documents: dict[Path, bytes] = {}

    def waiting(self) -> Iterator[tuple[Path, bytes]]:
        """The documents, including those added during iteration."""
        seen: set[Path] = set()
        while new := [path for path in self.documents if path not in seen]:
            seen.update(new)
            yield from ((path, self.documents[path]) for path in new)

    def content(self, folder: Path) -> Content:
        documents = {_name(path, self._root): data for path, data in self.documents.items()}
        return Content(
            folder, dict(sorted(self._entries.items())), frozenset(self._roots), documents
        )

    def add(self, path: Path, *, document: bool = False, strict: bool = False) -> None:
        """Cover a file, or a folder with everything below it; missing paths are ignored.

        Args:
            path: Its path; links in it are followed.
            document: Whether it is read as a plan.
            strict: Refuse special files and links out of the project.
        """
        path = Path(os.path.realpath(path))
        with _reading(path):
            try:
                mode = path.stat().st_mode
            except FileNotFoundError:
                return
        if document and stat.S_ISREG(mode):
            self._add_document(path)
        if _is_below(path, self._roots):
            return
        self._count(path)
        self._roots.add(path)
        if not stat.S_ISDIR(mode):
            self._add_file(path, strict)
            return
        for file in self._walk(path):
            self._add_file(file, strict)
        links, self._links = self._links, []
        for link in links:
            self._add_target(link, strict)

    def _add_target(self, link: Path, strict: bool) -> None:
        target = Path(os.path.realpath(link))
        if not target.is_relative_to(self._root):
            if strict:
                raise _refusal(link, "is a link out of the project", "Remove it.")
            return
        self.add(target)
        # Paths in a document read through the link are relative to the link.
        reached = [link]
        if target.is_dir():
            reached = [link / entry.relative_to(target) for entry in self._below(target)]
        for path in reached:
            if _is_document(path, self._root):
                self._add_document(path)

    def _below(self, folder: Path) -> list[Path]:
        return [path for name in self._entries if (path := self._root / name).parent == folder]

    def _walk(self, folder: Path) -> Iterator[Path]:
        """The files below a folder, in no particular order; links are not followed."""
        waiting = [folder]
        while waiting:
            here = waiting.pop()
            with _reading(here), os.scandir(here) as entries:
                for entry in entries:
                    self._count(folder)
                    if entry.is_dir(follow_symlinks=False):
                        if entry.name not in LEFT_OUT:
                            waiting.append(here / entry.name)
                    elif not _is_excluded((here / entry.name).relative_to(folder).parts):
                        yield here / entry.name

    def _count(self, folder: Path) -> None:
        self._seen += 1
        if self._seen > MAX_FILES:
            raise _refusal(
                folder,
                f"brings the project to more than {MAX_FILES:,} files",
                "Trust covers every file; keep only those that the project needs.",
            )

    def _add_file(self, path: Path, strict: bool) -> None:
        name = _name(path, self._root)
        with _reading(path):
            mode = path.lstat().st_mode
            if stat.S_ISLNK(mode):
                self._links.append(path)
                target = os.fsencode(os.readlink(path))
                text = target.decode("utf-8", "backslashreplace")
                self._entries[name] = Entry("link", _sha256(target), len(target), text)
            elif stat.S_ISREG(mode):
                self._entries[name] = self._entry(path)
            elif strict:
                raise _refusal(path, "is not a file, folder or link", "Remove it.")
            else:
                self._entries[name] = Entry("special", _sha256(b""), 0)

    def _entry(self, path: Path) -> Entry:
        digest = hashlib.sha256()
        kept: list[bytes] = []
        descriptor = open_regular(path, os.O_RDONLY)
        with open(descriptor, "rb", buffering=0) as stream:
            mode = os.fstat(descriptor).st_mode
            size = 0
            while chunk := stream.read(_CHUNK):
                digest.update(chunk)
                size += len(chunk)
                self._bytes += len(chunk)
                if self._bytes > MAX_BYTES:
                    raise _refusal(
                        path,
                        f"brings the project to more than {MAX_BYTES // 1024 // 1024} MiB",
                        "Trust covers every byte; keep only what the project needs.",
                    )
                if size <= MAX_DOCUMENT:
                    kept.append(chunk)
        data = b"".join(kept) if size <= MAX_DOCUMENT else None
        if data is not None and _is_document(path, self._root):
            self.documents.setdefault(path, data)
        kind: Kind = "executable" if mode & stat.S_IXUSR else "file"
        # A hostile project could refer to a private file to have its text shown in a log.
        own = path.is_relative_to(self._root)
        return Entry(kind, digest.hexdigest(), size, self._text(data if own else None))

    def _text(self, data: bytes | None) -> str | None:
        if data is None or len(data) > MAX_TEXT or self._texts + len(data) > MAX_TEXTS:
            return None
        try:
            text = data.decode("utf-8")
        except UnicodeDecodeError:
            return None
        if "\0" in text:
            return None
        self._texts += len(data)
        return text

    def _add_document(self, path: Path) -> None:
        if path in self.documents or not path.is_file():
            return
        with _reading(path), path.open("rb") as stream:
            self.documents[path] = stream.read(MAX_DOCUMENT)


def _folders_in(folder: Path) -> list[Path]:
    if not folder.is_dir():
        return []
    return [path for path in sorted(folder.iterdir()) if not path.name.startswith(".")]


def _is_document(path: Path, root: Path) -> bool:
    """Return True if a file below `.amplifier` has settings, a profile or an agent."""
    try:
        parts = path.relative_to(root).parts
    except ValueError:
        return False
    if parts[0] != ".amplifier" or path.suffix not in (".yaml", ".yml", ".md"):
        return False
    return len(parts) == 2 or parts[1] in ("profiles", "agents")


def _is_below(path: Path, roots: Collection[Path]) -> bool:
    """Return True if a path is covered by one of these roots."""
    return any(
        parent in roots and not _is_excluded(path.relative_to(parent).parts)
        for parent in (path, *path.parents)
    )


def _is_excluded(parts: tuple[str, ...]) -> bool:
    """Return True if a path is in an excluded folder, or is byte code."""
    if not LEFT_OUT.isdisjoint(parts):
        return True
    return len(parts) > 1 and parts[-2] == _BYTE_CODE and parts[-1].endswith(".pyc")


def _name(path: Path, root: Path) -> str:
    return path.relative_to(root).as_posix() if path.is_relative_to(root) else str(path)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def _refusal(path: Path, why: str, hint: str) -> ConfigError:
    message = f"the project cannot be trusted: {visible(str(path))} {why}"
    return ConfigError(message, hint=hint)


def _reading(path: Path) -> contextlib.AbstractContextManager[None]:
    what = f"cannot read the project: {visible(str(path))}"
    return system_errors_as(ConfigError, what, hint="Ignore it with --no-project.")
