"""Trust in what a project brings along: nothing of it counts before a person has agreed to it.

    paths.project_dir()   is there a project?
    content.py            what it brings along, and one hash over it   (selection.py: what its
                          documents select outside of `.amplifier`)
    store.py              what was trusted before
    review.py, asking.py  what a person is shown and asked
    imports.py            what is imported later is what was hashed
    requirements.py       what its modules require from this machine is part of it

Until then documents of a project are read as data only: none selects code, addresses, variables
or files for the program to use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.sanitize import for_terminal, visible
from amplifier_app.base.stdio import to_stderr
from amplifier_app.trust.content import Content, read_content
from amplifier_app.trust.store import Record, TrustStore

if TYPE_CHECKING:
    from amplifier_app.plan.model import ResolvedPlan

METADATA_KEY = "trusted_project"

Answer = Literal["trust", "go on without", "stop"]
Ask = Callable[[Content, Record | None], Answer]


class TrustedProject(NamedTuple):
    """A project that may be used.

    Attributes:
        folder: Its `.amplifier`.
        content: What is trusted of it; None if it is trusted whatever it is.
    """

    folder: Path
    content: Content | None

    def owns(self, file: Path) -> bool:
        """Whether a document is the project's, and what it selects is selected by the project."""
        if self.content is not None:
            return self.content.covers(file)
        return file.is_relative_to(self.folder.parent)

    def noted(self, plan: ResolvedPlan) -> dict[str, Any]:
        """What a session's metadata says of the project that its plan drew on."""
        from amplifier_app.trust.selection import sources_of_project

        sources = [str(path) for _, path in sources_of_project(plan, self.owns)]
        return {METADATA_KEY: {"folder": str(self.folder), "sources": sources}}

    def check(self, plan: ResolvedPlan) -> None:
        """Make sure that what was loaded is what is trusted; to be called before mounting.

        Raises:
            ConfigError: The project was changed meanwhile, or selects what was not looked at.
        """
        if self.content is None:
            return
        if examine(self.folder).hash != self.content.hash:
            raise ConfigError(
                f"the project {visible(str(self.content.root))} was changed while it was read",
                hint="Try again.",
            )
        from amplifier_app.trust.selection import sources_of_project

        for at, path in sources_of_project(plan, self.owns):
            if not self.content.covers(path):
                raise ConfigError(
                    f"{visible(str(path))} is not part of what was looked at before the project was "
                    "trusted",
                    location=at,
                    hint="Check that it is there, and that a document of the project names it.",
                )
            self._check_requirements(path)
        modules = self.folder / "modules"
        for module in sorted(modules.iterdir()) if modules.is_dir() else ():
            self._check_requirements(module)

    def _check_requirements(self, module: Path) -> None:
        from amplifier_app.trust.requirements import local_requirements

        for path in local_requirements(module):
            if self.content is not None and not self.content.covers(path):
                raise ConfigError(
                    f"the module in {visible(str(module))} requires {visible(str(path))}, which is "
                    "not part of what was looked at before the project was trusted",
                    location=Location(str(module / "pyproject.toml")),
                    hint=f"Move it into {visible(str(self.folder))}; 'amplifier trust --always' "
                    "trusts a project of your own with all it requires.",
                )


def examine(folder: Path) -> Content:
    """What a project brings along now.

    Args:
        folder: Its `.amplifier`.

    Raises:
        ConfigError: It holds what cannot be trusted, cannot be read or is too much.
    """
    from amplifier_app.trust.selection import selected_by

    return read_content(folder, lambda path, data: selected_by(path, data, folder))


def trusted_project(
    folder: Path, *, trust: bool = False, ask: Ask | None = None
) -> TrustedProject | None:
    """A project, if it is trusted with what it holds now.

    From then on the process imports from it only what is trusted.

    Args:
        folder: Its `.amplifier`.
        trust: Trust it for this run, whatever it holds.
        ask: Asks a person about a project that is not trusted. An answer "trust" is kept.

    Returns:
        None if the person wants to go on without it.

    Raises:
        ConfigError: It is not trusted and nobody can be asked, or the answer is to stop; or it
            cannot be trusted at all.
    """
    store = TrustStore()
    record = store.record(folder.parent)
    if record is not None and record.always:
        return TrustedProject(folder, None)
    content = examine(folder)
    agreed = trust or not content.entries or (record is not None and record.hash == content.hash)
    if not agreed:
        answer = ask(content, record) if ask is not None else "stop"
        if answer == "go on without":
            return None
        if answer != "trust":
            raise _untrusted(content, record)
        store.trust(content)
    from amplifier_app.trust.imports import guard_imports

    guard_imports(content)
    return TrustedProject(folder, content)


def project_to_look_at() -> TrustedProject | None:
    """The project of the working directory for commands that only look, if it is trusted.

    One that is not is left out, which is told on stderr.
    """
    folder = None if ignored_by_environment() else paths.project_dir()
    if folder is None:
        return None
    try:
        return trusted_project(folder)
    except ConfigError as error:
        tell_left_out(error)
        return None


def tell_left_out(error: ConfigError) -> None:
    """Say on stderr that a project does not count, and why."""
    to_stderr(for_terminal(f"amplifier: {error.message}; it is left out (see: amplifier trust)"))


def ignored_by_environment() -> bool:
    """Whether AMPLIFIER_NO_PROJECT says that there is no project, whatever there is."""
    return os.environ.get("AMPLIFIER_NO_PROJECT", "").lower() not in ("", "0", "false", "no")


def _untrusted(content: Content, record: Record | None) -> ConfigError:
    state = "is not trusted" if record is None else "has changed since it was trusted"
    return ConfigError(
        f"the project {visible(str(content.root))} {state}",
        hint="Look at it and trust it with 'amplifier trust'; '--trust' trusts it for one run, "
        "'--no-project' leaves it out.",
    )
