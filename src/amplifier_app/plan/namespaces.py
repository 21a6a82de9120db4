"""Namespaces: the folders that `namespace:path` starts from.

A namespace is the name of a bundle and stands for the folder that the bundle is in. A bundle in a
folder below another one (`behaviors/`, `providers/`) has the namespace of that one as well. Where no
bundle has the name, a folder of that name counts which the document is in or which is next to one
of those; this is how collections of profiles refer to each other.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from amplifier_app.plan.profile_paths import in_collection

BUNDLE_FILES = ("bundle.md", "bundle.yaml", "bundle.yml")
_LEVELS = 4


class Checkout(NamedTuple):
    """Files that were fetched.

    Attributes:
        folder: Where they are, absolute.
        shown: What stands for the folder in messages.
        source: The source of the folder at exactly this state; a `#subdirectory=` can be added.
    """

    folder: Path
    shown: str
    source: str

    def source_of(self, path: Path) -> str:
        """The source of a folder in it, for a module."""
        below = path.relative_to(self.folder).as_posix()
        if below == ".":
            return self.source
        return f"{self.source}{'&' if '#' in self.source else '#'}subdirectory={below}"


class Found(NamedTuple):
    """What `namespace:path` means.

    Attributes:
        path: The file; None if there is none.
        tried: Where it was looked for.
    """

    path: Path | None
    tried: tuple[Path, ...] = ()

    def hint(self, shown: Callable[[Path], str]) -> str:
        """Where it was looked for, for a person."""
        if not self.tried:
            return "no bundle has this namespace, and no folder is called so"
        return f"looked for {', '.join(map(shown, self.tried))}"


class Namespaces:
    """The namespaces of the documents that one plan consists of."""

    def __init__(self) -> None:
        self._roots: dict[str, list[Path]] = {}
        self._checkouts: dict[Path, Checkout] = {}

    # -- knowing -----------------------------------------------------------------------

    def add(self, name: str, folder: Path) -> None:
        """Have a namespace stand for one more folder; the one that was added first counts."""
        roots = self._roots.setdefault(name, [])
        if folder not in roots:
            roots.append(folder)

    def add_bundle(
        self, path: Path, name: str | None, name_of: Callable[[Path], str | None]
    ) -> None:
        """Add the namespaces of a bundle: its own, and those of the bundles in the folders above.

        Args:
            path: Its file.
            name: Its name.
            name_of: Reads the name of another bundle.
        """
        is_root = path.name in BUNDLE_FILES
        if is_root and name:
            self.add(name, path.parent)
        for folder in self._folders_above(path.parent):
            for file in (folder / file_name for file_name in BUNDLE_FILES):
                if file != path and file.is_file() and (above := name_of(file)):
                    self.add(above, folder)
                    if name and not is_root:
                        self.add(name, folder)
                    break
        if name:
            self.add(name, path.parent)

    def add_checkout(self, checkout: Checkout) -> None:
        """Know a folder for one that was fetched."""
        self._checkouts[checkout.folder] = checkout

    @property
    def names(self) -> list[str]:
        """The namespaces that bundles have."""
        return sorted(self._roots)

    @property
    def checkouts(self) -> tuple[Checkout, ...]:
        """The folders that were fetched."""
        return tuple(self._checkouts.values())

    def _folders_above(self, folder: Path) -> list[Path]:
        checkout = self.checkout_of(folder)
        found: list[Path] = []
        for above in (folder, *folder.parents)[: 64 if checkout else _LEVELS]:
            found.append(above)
            if above == (checkout.folder if checkout else None) or (above / ".git").exists():
                break
        return found

    # -- finding -----------------------------------------------------------------------

    def checkout_of(self, path: Path) -> Checkout | None:
        """What was fetched that a file is part of; None for a file of this machine."""
        for folder in (path, *path.parents) if self._checkouts else ():
            if folder in self._checkouts:
                return self._checkouts[folder]
        return None

    def may_read(self, document: Path, path: Path) -> bool:
        """Whether a document may take a file in: what was fetched keeps to what was fetched."""
        if self.checkout_of(document) is None:
            return True
        return self.checkout_of(Path(os.path.realpath(path))) is not None

    def roots(self, name: str, document: Path) -> list[Path]:
        """The folders a namespace stands for in a document, the one that counts first in front."""
        roots = self._roots.get(name, [])
        return sorted(roots, key=lambda root: not document.is_relative_to(root))

    def find(
        self, document: Path, text: str, forms: Sequence[str] = ("{}",), own: str | None = None
    ) -> Found:
        """The file that `namespace:path` means in a document.

        Args:
            document: The document, absolute.
            text: What it says.
            forms: How the path may be written short, the one that counts first in front.
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
        beside = in_collection(document, text, forms, own)
        if beside is not None and self.may_read(document, beside):
            return Found(beside)
        return Found(None, tuple(tried))

    def _is_below(self, path: Path, root: Path, document: Path) -> bool:
        """Whether no link leads what was fetched out of the folder of a bundle."""
        if self.checkout_of(document) is None:
            return True
        return Path(os.path.realpath(path)).is_relative_to(os.path.realpath(root))

    # -- showing -----------------------------------------------------------------------

    def shown(self, path: Path, file: str, document: Path) -> str:
        """A file as problems and origins call it: relative where the document is called so.

        Args:
            path: The file, absolute.
            file: How the document is called that names it.
            document: That document, absolute.
        """
        checkout = self.checkout_of(path)
        if checkout is not None:
            return f"{checkout.shown}:{path.relative_to(checkout.folder).as_posix()}"
        near = path.is_relative_to(document.parent.parent)
        if os.path.isabs(file) or not near or self.checkout_of(document) is not None:
            return str(path)
        relative = os.path.relpath(path, document.parent)
        return os.path.normpath(os.path.join(os.path.dirname(file), relative))
