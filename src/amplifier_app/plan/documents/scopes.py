"""Settings files: what a user and a project apply to every profile.

    config_dir()/settings.yaml        user
    <project>/settings.yaml           project
    <project>/settings.local.yaml     local: this user in this project

Each is a partial plan, plus `profile:` for the default profile and `sources:` to override the sources
of modules. The narrower scope wins.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from amplifier_app.base import paths
from amplifier_app.base.errors import Location
from amplifier_app.plan.documents.document import Document
from amplifier_app.plan.documents.reading import Reader
from amplifier_app.plan.schema.grammar import SETTINGS, THEMES
from amplifier_app.plan.tree.nodes import Node, Scalar, plain_data, with_items
from amplifier_app.plan.tree.problems import Problems
from amplifier_support.named_tuple import NamedTuple

USER, PROJECT, LOCAL = "user", "project", "local"
SCOPES = (USER, PROJECT, LOCAL)


class Override(NamedTuple):
    """The source of a module that overrides the plan's.

    Attributes:
        source: The source; a folder is absolute.
        at: Where it is written.
    """

    source: str
    at: Location


class Settings(NamedTuple):
    """The settings files in effect, the widest scope first.

    Attributes:
        project: The folder of the trusted project whose settings they include.
        files: The existing files.
        problems: Their problems, and their texts, so that problems found later can show lines.
    """

    project: Path | None
    files: tuple[Document, ...]
    problems: Problems

    @property
    def profile(self) -> Scalar | None:
        """The name of the default profile."""
        for settings in reversed(self.files):
            node = settings.tree.items.get("profile")
            if isinstance(node, Scalar):
                return node
        return None

    @property
    def sources(self) -> Mapping[str, Scalar]:
        """`sources` by module id; an empty one removes that of a wider scope."""
        sources: dict[str, Node] = {}
        for settings in self.files:
            sources |= settings.tree.mapping("sources").items
        return {
            module: source
            for module, source in sources.items()
            if isinstance(source, Scalar) and source.value is not None
        }

    @property
    def display(self) -> Mapping[str, Any]:
        """The keys of `display`; the path of a theme is absolute."""
        display: dict[str, Any] = {}
        for settings in self.files:
            for key, value in settings.tree.mapping("display").items.items():
                display[key] = plain_data(value)
            theme = display.get("theme")
            if isinstance(theme, str) and theme not in THEMES:
                display["theme"] = str(settings.path.parent / os.path.expanduser(theme))
        return display


def _without_keys(document: Document, problems: Problems) -> Document:
    """Leave out the keys that answer questions: a project must not make a no a yes."""
    display = document.tree.mapping("display")
    if "approval_keys" not in display.items:
        return document
    problems.note(
        "'display.approval_keys' is ignored: only your own settings can set it",
        display.key_at("approval_keys"),
    )
    kept = {name: node for name, node in display.items.items() if name != "approval_keys"}
    return document._replace(tree=document.tree.with_item("display", with_items(display, kept)))


def settings_path(scope: str, project: Path | None = None) -> Path | None:
    """The settings file of a scope, whether or not it exists.

    Returns:
        None for a project scope without a project.
    """
    if scope == USER:
        return paths.config_dir() / "settings.yaml"
    if project is None:
        return None
    return project / ("settings.local.yaml" if scope == LOCAL else "settings.yaml")


def read_settings(project: Path | None = None, *, keep_problems: bool = False) -> Settings:
    """Read the settings of the user and of a project.

    Args:
        project: The folder of a trusted project.
        keep_problems: Whether the result has the problems; otherwise they are raised.

    Raises:
        ConfigError: A file cannot be read.
        PlanError: A file is invalid; with the problems of all files.
    """
    problems = Problems()
    reader = Reader(problems, project)
    documents: list[Document] = []
    for scope in SCOPES:
        path = settings_path(scope, project)
        if path is not None and os.path.lexists(path):
            document = reader.read(str(path), path, SETTINGS)
            documents.append(document if scope == USER else _without_keys(document, problems))
    if not keep_problems:
        problems.raise_if_any()
    return Settings(project, tuple(documents), problems)
