"""Trust in a project: Amplifier ignores its files until a person has agreed to their content.

    paths.project_dir()   finds the project
    content.py            its content, and one hash over it
    selection.py          what its documents select outside of `.amplifier`, and what its modules require
    store.py              which content is trusted
    review.py             what a person is shown before deciding
    imports.py            imports only what was hashed

Until then the documents of a project are only read as data: they select no code, URLs, variables
or files for the program to use. Instruction files such as AGENTS.md and skills, outside of its `.amplifier`,
select no code, so trust in their folder suffices; later changes of them need no new review.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Generator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.base.sanitize import for_terminal, visible
from amplifier_app.base.stdio import to_stderr
from amplifier_app.trust.content import Content, read_content
from amplifier_app.trust.store import Record, TrustStore
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.project_folders import project_folders

if TYPE_CHECKING:
    from amplifier_app.plan.model import ResolvedPlan


METADATA_KEY = "trusted_project"

Answer = Literal["trust", "go on without", "stop"]
Ask = Callable[[Content, Record | None], Answer]


class TrustedProject(NamedTuple):
    """A trusted project.

    Attributes:
        folder: Its `.amplifier`.
        content: The trusted content; None if the project is always trusted.
    """

    folder: Path
    content: Content | None

    def owns(self, file: Path) -> bool:
        """Return True if a document belongs to the project."""
        if self.content is not None:
            return self.content.covers(file)
        return file.is_relative_to(self.folder.parent)

    def session_metadata(self, plan: ResolvedPlan) -> dict[str, Any]:
        """The session metadata about the project that its plan uses."""
        if self.content is not None and not self.content.entries:
            return {}  # nothing that a resumed session could need
        from amplifier_app.trust.selection import sources_of_project

        sources = [str(path) for _, path in sources_of_project(plan, self.owns)]
        return {METADATA_KEY: {"folder": str(self.folder), "sources": sources}}

    def check(self, plan: ResolvedPlan) -> None:
        """Check that what was loaded is what is trusted. Call this before mounting.

        Raises:
            ConfigError: The project has changed meanwhile, or selects something not reviewed.
        """
        if self.content is None:
            return
        if examine(self.folder).hash != self.content.hash:
            raise ConfigError(
                f"the project {visible(str(self.content.root))} changed while it was being read",
                hint="Try again.",
            )
        from amplifier_app.trust.selection import scorers_of_project, sources_of_project

        selected = (*sources_of_project(plan, self.owns), *scorers_of_project(plan, self.owns))
        for at, path in selected:
            if not self.content.covers(path):
                raise ConfigError(
                    f"{visible(str(path))} was not reviewed when the project was trusted",
                    location=at,
                    hint="Check that it exists and that a document of the project refers to it.",
                )
            self._check_requirements(path)
        modules = self.folder / "modules"
        for module in sorted(modules.iterdir()) if modules.is_dir() else ():
            self._check_requirements(module)

    def _check_requirements(self, module: Path) -> None:
        from amplifier_app.trust.selection import local_requirements

        for path in local_requirements(module):
            if self.content is not None and not self.content.covers(path):
                raise ConfigError(
                    f"the module in {visible(str(module))} requires {visible(str(path))}, which was "
                    "not reviewed when the project was trusted",
                    location=Location(str(module / "pyproject.toml")),
                    hint=f"Move it into {visible(str(self.folder))}. If only you write to the "
                    "project, 'amplifier trust --always' trusts it with everything it requires.",
                )


def examine(folder: Path) -> Content:
    """Read the current content of a project.

    Args:
        folder: Its `.amplifier`.

    Raises:
        ConfigError: It has something that cannot be trusted, is unreadable or too large.
    """
    from amplifier_app.trust.selection import selected_by

    return read_content(folder, lambda path, data: selected_by(path, data, folder))


def trusted_project(
    folder: Path, *, trust: bool = False, ask: Ask | None = None
) -> TrustedProject | None:
    """The project, if it is trusted with its current content.

    From then on this process imports only trusted files from it.

    Args:
        folder: Its `.amplifier`.
        trust: Trust it for this run, whatever its content.
        ask: Asks a person about an untrusted project. The answer "trust" is stored.

    Returns:
        None if the person chose to continue without it.

    Raises:
        ConfigError: It is not trusted and there is no one to ask, the answer is to stop, or it
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
            raise _untrusted_error(content, record)
        store.trust(content)
    from amplifier_app.trust.imports import guard_imports

    guard_imports(content)
    return TrustedProject(folder, content)


def check_programs(root: Path) -> None:
    """Check that what trust covers in a project is what was trusted, so that its programs may run.

    Raises:
        ConfigError: It has changed, or is unreadable.
    """
    record = TrustStore().record(root)
    if record is not None and record.always:
        return
    content = examine(root / paths.PROJECT_FOLDER)
    if record is None or not record.allows(content):
        raise _untrusted_error(content, record)


def project_if_trusted(*, quiet: bool = False) -> TrustedProject | None:
    """The project of the working directory, for read-only commands; None if it is not trusted.

    Skipping an untrusted project is reported on stderr, unless `quiet`.
    """
    project = project_or_fault()
    if isinstance(project, ConfigError):
        if not quiet:
            report_skipped(project)
        return None
    return project


def project_or_fault() -> TrustedProject | ConfigError | None:
    """The project of the working directory, or the reason not to trust it; None without a project."""
    folder = None if ignored_by_environment() else paths.project_dir()
    if folder is None:
        return None
    try:
        return trusted_project(folder)
    except ConfigError as error:
        return error


def folder_if_trusted(*, quiet: bool = False) -> Path | None:
    """The folder of this project; see `project_if_trusted`."""
    project = project_if_trusted(quiet=quiet)
    return None if project is None else project.folder


def report_skipped(error: ConfigError) -> None:
    """Report on stderr that a project is skipped, and why; once for all plans of a command."""
    _report(f"amplifier: {error.message}; skipping it (see: amplifier trust)")


@cache
def _report(message: str) -> None:
    to_stderr(for_terminal(message))


def ignored_by_environment() -> bool:
    """Return True if AMPLIFIER_NO_PROJECT disables projects."""
    return os.environ.get("AMPLIFIER_NO_PROJECT", "").lower() not in ("", "0", "false", "no")


def _untrusted_error(content: Content, record: Record | None) -> ConfigError:
    state = "is not trusted" if record is None else "has changed since it was trusted"
    return ConfigError(
        f"the project {visible(str(content.root))} {state}",
        hint="Review and trust it with 'amplifier trust'; '--trust' trusts it for one run, "
        "'--no-project' ignores it.",
    )


@contextlib.contextmanager
def keeping_trust(folder: Path | None, file: Path) -> Generator[None]:
    """Trust a project with its content after the block, if it was trusted before.

    Only the given file may change, and what it newly selects outside of `.amplifier`. After any
    other change the project must be reviewed again.

    Args:
        folder: Its `.amplifier`; None to do nothing.
        file: The file that the block changes; ignored if it is not in `folder`.

    Raises:
        ConfigError: The file is a link out of the project, which may have been planted to change
            other settings.
    """
    if folder is None or not file.absolute().is_relative_to(folder):
        yield
        return
    if not Path(os.path.realpath(file)).is_relative_to(folder.parent):
        raise ConfigError(
            f"cannot change {file}: it is a link out of the project, to {os.path.realpath(file)}",
            hint="Change that file instead, or remove the link.",
        )
    store = TrustStore()
    before = _trusted_content(store, folder)
    yield
    if before is None:
        return
    after = examine(folder)
    if _differs_only_in(file.absolute().relative_to(folder.parent).as_posix(), before, after):
        store.trust(after)


def _trusted_content(store: TrustStore, folder: Path) -> Content | None:
    """The project's content; None if it is not trusted, or is always trusted."""
    record = store.record(folder.parent)
    if record is not None and record.always:
        return None
    try:
        content = examine(folder)
    except ConfigError:
        # An unreadable project is not trusted; using it reports why.
        return None
    # An empty project is the user's own.
    known = not content.entries or (record is not None and record.allows(content))
    return content if known else None


def _differs_only_in(name: str, before: Content, after: Content) -> bool:
    in_both = before.entries.keys() & after.entries.keys()
    # Entries outside the folder are files that its documents select.
    inside = {
        n for n in before.entries.keys() ^ after.entries.keys() if n.startswith(".amplifier/")
    }
    return all(before.entries.get(n) == after.entries.get(n) for n in in_both | inside if n != name)


INSTRUCTION_NAMES = ("AGENTS.md", "CLAUDE.md")
_SKILLS = (".agents/skills", ".claude/skills")


def trusted_dir(working_dir: str) -> str | None:
    """The topmost folder, from the repository's root to the working directory, that the user trusts.

    None if there is none.

    Raises:
        ConfigError: A trust record is damaged, or others could have written it.
    """
    store = TrustStore()
    if not store.folder.is_dir():
        return None
    folders = project_folders(working_dir)
    return next((folder for folder in folders if store.record(Path(folder)) is not None), None)


def instruction_files(working_dir: str) -> list[Path]:
    """The instruction files from the repository's root to the working directory, one for each folder."""
    files = (
        [Path(folder, name) for name in INSTRUCTION_NAMES]
        for folder in project_folders(working_dir)
    )
    return [first for names in files if (first := next(filter(os.path.lexists, names), None))]


def instruction_sources(working_dir: str) -> list[Path]:
    """Everything that gives instructions: `instruction_files`, and the folders with skills."""
    folders = [Path(folder, name) for folder in project_folders(working_dir) for name in _SKILLS]
    return [*instruction_files(working_dir), *filter(os.path.isdir, folders)]
