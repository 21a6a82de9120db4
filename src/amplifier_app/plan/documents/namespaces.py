"""Namespaces: the folders that `namespace:path` is relative to.

A namespace is the name of a bundle and refers to the bundle's folder. A bundle in a subfolder of
another one (`behaviors/`, `providers/`) also has the parent's namespace. If no bundle has the name,
it refers to a folder of that name above the document, or next to a folder above it; collections of
profiles refer to each other in this way.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Sequence
from pathlib import Path

from amplifier_app.plan.documents.profile_paths import in_collection
from amplifier_app.plan.schema.rules import NAME
from amplifier_support.named_tuple import NamedTuple

BUNDLE_FILES = ("bundle.md", "bundle.yaml", "bundle.yml")

_LEVELS = 4


def bundle_in(folder: Path) -> Path | None:
    """The bundle file of a folder."""
    files = (folder / name for name in BUNDLE_FILES)
    return next((file for file in files if file.is_file()), None)


class Checkout(NamedTuple):
    """Files that were fetched.

    Attributes:
        folder: Where they are, absolute.
        shown: The name of the folder in messages.
        source: The source of the folder at exactly this version; accepts a `#subdirectory=`.
    """

    folder: Path
    shown: str
    source: str

    def find_source(self, path: Path) -> str:
        """The source of a folder in it, for a module."""
        below = path.relative_to(self.folder).as_posix()
        if below == ".":
            return self.source
        return f"{self.source}{'&' if '#' in self.source else '#'}subdirectory={below}"


class Found(NamedTuple):
    """The result of resolving `namespace:path`.

    Attributes:
        path: The file; None if it does not exist.
        tried: The paths that were searched.
    """

    path: Path | None
    tried: tuple[Path, ...] = ()

    def hint(self, shown: Callable[[Path], str]) -> str:
        """The searched paths, for a message."""
        if not self.tried:
            return "no bundle or folder has this name"
        return f"searched {', '.join(map(shown, self.tried))}"


class Namespaces:
    """The namespaces of the documents of one plan."""

    def __init__(self) -> None:
        self._roots: dict[str, list[Path]] = {}
        self._checkouts: dict[Path, Checkout] = {}

    # -- registering -------------------------------------------------------------------

    def add(self, name: str, folder: Path) -> None:
        """Add a folder to a namespace; the folder added first is searched first."""
        roots = self._roots.setdefault(name, [])
        if folder not in roots:
            roots.append(folder)

    def add_bundle(
        self, path: Path, name: str | None, read_name: Callable[[Path], str | None]
    ) -> None:
        """Add the namespaces of a bundle: its own, and those of the bundles in the folders above.

        Args:
            path: Its file.
            name: Its name.
            read_name: Reads the name of another bundle.
        """
        is_root = path.name in BUNDLE_FILES
        if is_root and name:
            self.add(name, path.parent)
        for folder in self._folders_above(path.parent):
            for file in (folder / file_name for file_name in BUNDLE_FILES):
                if file != path and file.is_file() and (above := read_name(file)):
                    self.add(above, folder)
                    if name and not is_root:
                        self.add(name, folder)
                    break
        if name:
            self.add(name, path.parent)

    def add_checkout(self, checkout: Checkout) -> None:
        """Register a fetched folder."""
        self._checkouts[checkout.folder] = checkout

    @property
    def names(self) -> list[str]:
        """The namespaces of bundles."""
        return sorted(self._roots)

    @property
    def sources(self) -> dict[str, list[str]]:
        """The sources of the folders of every namespace: absolute paths, or what was fetched.

        Texts cannot mention a namespace with another name, nor can a plan have one.
        """
        names = [name for name in self.names if re.fullmatch(NAME, name)]
        return {name: [self._source(root) for root in self._roots[name]] for name in names}

    def _source(self, root: Path) -> str:
        checkout = self.find_checkout(root)
        return str(root) if checkout is None else checkout.find_source(root)

    @property
    def checkouts(self) -> tuple[Checkout, ...]:
        """The folders that were fetched."""
        return tuple(self._checkouts.values())

    def _folders_above(self, folder: Path) -> list[Path]:
        checkout = self.find_checkout(folder)
        home = Path(os.path.expanduser("~"))
        paths: list[Path] = []
        for above in (folder, *folder.parents)[: 64 if checkout else _LEVELS]:
            # A bundle in the home folder is not about everything in it.
            if above != folder and home.is_relative_to(above):
                break
            paths.append(above)
            if above == (checkout.folder if checkout else None) or (above / ".git").exists():
                break
        return paths

    # -- finding -----------------------------------------------------------------------

    def find_checkout(self, path: Path) -> Checkout | None:
        """The checkout that contains a file; None for a local file."""
        for folder in (path, *path.parents) if self._checkouts else ():
            if folder in self._checkouts:
                return self._checkouts[folder]
        return None

    def may_read(self, document: Path, path: Path) -> bool:
        """Return True if a document may read a file: fetched documents may read fetched files only."""
        if self.find_checkout(document) is None:
            return True
        return self.find_checkout(Path(os.path.realpath(path))) is not None

    def roots(self, name: str, document: Path) -> list[Path]:
        """The folders of a namespace, in search order for a document."""
        roots = self._roots.get(name, [])
        return sorted(roots, key=lambda root: not document.is_relative_to(root))

    def find(
        self, document: Path, text: str, forms: Sequence[str] = ("{}",), own: str | None = None
    ) -> Found:
        """Resolve `namespace:path` in a document.

        Args:
            document: The document, absolute.
            text: The reference.
            forms: Patterns that expand a short path, in search order.
            own: The name of the document.
        """
        name, _, rest = text.partition(":")
        tried: dict[Path, None] = {}
        for root in self.roots(name, document):
            for form in forms:
                path = Path(os.path.normpath(root / form.format(rest)))
                if path.is_relative_to(root):
                    if path.is_file() and self._is_below(path, root, document):
                        return Found(path)
                    tried[path] = None
        nearby = in_collection(document, text, forms, own)
        if nearby is not None and self.may_read(document, nearby):
            return Found(nearby)
        return Found(None, tuple(tried))

    def _is_below(self, path: Path, root: Path, document: Path) -> bool:
        """Return True if a fetched file, with links resolved, is inside the bundle's folder."""
        if self.find_checkout(document) is None:
            return True
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))

    # -- showing -----------------------------------------------------------------------

    def shown(self, path: Path, file: str, document: Path) -> str:
        """The name of a file in problems and origins: relative if the document's name is relative.

        Args:
            path: The file, absolute.
            file: The name of the document that refers to it.
            document: That document, absolute.
        """
        checkout = self.find_checkout(path)
        if checkout is not None:
            return f"{checkout.shown}:{path.relative_to(checkout.folder).as_posix()}"
        near = path.is_relative_to(document.parent.parent)
        if os.path.isabs(file) or not near or self.find_checkout(document) is not None:
            return str(path)
        relative = os.path.relpath(path, document.parent)
        return os.path.normpath(os.path.join(os.path.dirname(file), relative))
