"""Change a settings file: which one, the sources it names, and the report of a change."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Generator
from pathlib import Path
from typing import Annotated, Literal

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.typer_options import option
from amplifier_app.plan.documents.scopes import USER, settings_path
from amplifier_app.plan.masking import is_secret_key
from amplifier_app.plan.source_spec import (
    ArchiveSource,
    FolderSource,
    Source,
    SourceSyntaxError,
    parse_source,
)
from amplifier_app.plan.tree.nodes import MapNode, read_text
from amplifier_app.trust import ignored_by_environment, keeping_trust
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.secret_shapes import names_variable


def warn_of_secret(config: MapNode, option: str) -> str | None:
    """Return the warning about a secret in plain text; None if no value is one.

    Args:
        config: The values.
        option: The option of the command line that gave them.
    """
    for key, node in config.items.items():
        value = read_text(node) if is_secret_key(key) else None
        if value is not None and "${" not in value and not names_variable(key, value):
            return (
                f"{key} is stored in plain text; better set an environment variable and use "
                f"{option} '{key}=${{VARIABLE}}'"
            )
    return None


class Target(NamedTuple):
    """The settings file to change.

    Attributes:
        scope: `"user"`, `"project"` or `"local"`.
        file: The file, which may not exist.
        project: The project folder of the working directory.
    """

    scope: str
    file: Path
    project: Path | None


def target(scope: str | None, *, in_project: str) -> Target:
    """The settings file of a scope.

    Args:
        scope: The scope; by default `in_project` inside a project, otherwise the user's own.
        in_project: The default scope inside a project.

    Raises:
        ConfigError: The scope belongs to a project, and there is none.
    """
    project = None if ignored_by_environment() else paths.project_dir()
    chosen = scope or (in_project if project is not None else USER)
    file = settings_path(chosen, project)
    if file is None:
        raise ConfigError(
            f"no project here for settings of scope {chosen!r}",
            hint="Create a .amplifier folder first, or use --scope user.",
        )
    return Target(chosen, file, project)


# -- sources -----------------------------------------------------------------------------


def parse_location(source: str) -> Source:
    """Read a source of the command line, where a relative path starts at the working directory.

    Raises:
        UsageError: It is invalid.
    """
    try:
        return parse_source(source, Path.cwd())
    except SourceSyntaxError as error:
        raise UsageError(error.message, hint=error.hint) from None


def written_source(text: str, where: Target) -> str:
    """A source of the command line as settings name it: relative if it is inside the project.

    Raises:
        UsageError: The source is invalid.
    """
    source = parse_location(text)
    if isinstance(source, FolderSource):
        path, rest = source.path, ""
    elif isinstance(source, ArchiveSource) and source.is_local:
        path, rest = Path(source.location), text[text.index("#") :] if "#" in text else ""
    else:
        return text
    if where.project is None or where.scope == USER:
        return f"{path}{rest}"
    if not path.resolve().is_relative_to(where.project.parent.resolve()):
        return f"{path}{rest}"
    relative = Path(os.path.relpath(path, where.file.parent)).as_posix()
    return f"{relative if relative.startswith('.') else f'./{relative}'}{rest}"


ScopeOption = Annotated[
    Literal["user", "project", "local"] | None,
    option("--scope", "Settings to change: your own, the project's, or your own for this project."),
]


@contextlib.contextmanager
def changing(scope: str | None, *, in_project: str) -> Generator[Target]:
    """The settings file to change; a trusted project stays trusted after the change.

    Other processes that change settings wait until the block ends.

    Args:
        scope: The scope option.
        in_project: The default scope inside a project.
    """
    where = target(scope, in_project=in_project)
    with changing_settings(), keeping_trust(where.project, where.file):
        yield where


def report(where: Target, change: str, warning: str | None = None) -> None:
    """Report a change of the settings on stderr, and a concern about it."""
    to_stderr(one_line(f"amplifier: {change} ({where.file})", 1000))
    if warning:
        to_stderr(one_line(f"amplifier: {warning}", 1000))
