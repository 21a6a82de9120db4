"""What the sandboxes of one session have in common."""

from __future__ import annotations

import os
from collections.abc import Iterable
from functools import cached_property
from typing import TYPE_CHECKING, Any

from amplifier_support.below import is_below
from amplifier_support.sandbox.policy import Level, PolicyError

if TYPE_CHECKING:
    from amplifier_support.sandbox.private_folder import PrivateFolder

CREDENTIALS = (
    "~/.ssh", "~/.gnupg", "~/.aws", "~/.azure", "~/.kube", "~/.docker", "~/.config/gcloud",
    "~/.config/gh", "~/.config/op", "~/.password-store", "~/.local/share/keyrings", "~/.netrc",
    "~/.git-credentials", "~/.config/git/credentials", "~/.pypirc", "~/.npmrc", "~/.pgpass",
    "~/.cargo/credentials.toml", "~/.terraform.d", "~/.vault-token", "~/.mozilla", "~/.config/google-chrome",
    "~/.config/chromium", "~/Library/Keychains",
)  # fmt: skip
"""Files and folders that commands cannot read, even where `read: host` is set."""


class SessionState:
    """What the sandboxes of one session have in common.

    Args:
        folder: The session's working directory.
        hidden: What commands can neither read nor change, in addition to `CREDENTIALS`.
        readable: Folders below these that they can read nevertheless.
        plan_files: The files of the session's plan.

    Attributes:
        folder: The session's working directory, links resolved.
        private: The folder for temporary files, once there is one.
        sandboxes: All of them.
        needed: Whether something asked for a sandbox.
        used: The layer that commands have run in.
        refused: What was missing for the first policy that must be enforced.
        without: What was missing for the first policy that need not be enforced.
        known: The folders that policies name, each with what it was at first.
    """

    def __init__(
        self,
        folder: str,
        hidden: Iterable[str],
        readable: Iterable[str],
        plan_files: Iterable[str],
    ) -> None:
        self.folder = os.path.realpath(folder)
        self._hidden = tuple(hidden)
        self._readable = tuple(readable)
        self._plan_files = tuple(plan_files)
        self.private: PrivateFolder | None = None
        self.sandboxes: list[Any] = []
        self.needed = False
        self.used: Level | None = None
        self.refused: str | None = None
        self.without: str | None = None
        self.known: dict[str, str] = {}

    @cached_property
    def hidden(self) -> tuple[str, ...]:
        """What commands can neither read nor change, links resolved."""
        expanded = map(os.path.expanduser, (*CREDENTIALS, *self._hidden))
        return tuple(map(os.path.realpath, expanded))

    @cached_property
    def readable(self) -> tuple[str, ...]:
        """Folders below these that they can read nevertheless, links resolved."""
        return tuple(map(os.path.realpath, self._readable))

    @cached_property
    def plan_files(self) -> tuple[str, ...]:
        """The files of the session's plan, links resolved."""
        return tuple(map(os.path.realpath, self._plan_files))

    def resolved(self, place: str) -> str:
        """A folder of a policy as it was when the session first named it, links resolved.

        Later a command may have put a link in its place.

        Raises:
            PolicyError: It is a link of the working directory to a folder outside of that.
        """
        if place not in self.known:
            path = os.path.normpath(os.path.join(self.folder, os.path.expanduser(place)))
            resolved = os.path.realpath(path)
            if is_below(path, self.folder) and not is_below(resolved, self.folder):
                # The policy is the user's, but the author of the repository chose the target.
                problem = (
                    f"'write' contains {place!r}, a link that leads out of the working directory"
                )
                raise PolicyError("write", problem, f"the path itself: {resolved}")
            self.known[place] = resolved
        return self.known[place]
