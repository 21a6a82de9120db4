"""Reads the replies of provider-mock."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import yaml
from pydantic import Field

from amplifier_modules._shared.module.config import parse_config
from amplifier_modules.provider_mock.config import MODULE_ID, MockConfig, Reply


class _Script(MockConfig):
    """What a script file may hold: the replies alone."""

    replies: list[Reply] = Field(default_factory=list[Reply])


def read_replies(config: MockConfig, working_dir: str | None) -> list[Reply]:
    """The scripted replies, from the config itself or from its script file.

    Args:
        config: The provider's settings.
        working_dir: Where a relative script path starts; the process's own when None.

    Raises:
        ValueError: The file cannot be read, or what it holds is not a script.
    """
    if config.script is None:
        return config.replies
    path = Path(working_dir or ".") / Path(config.script).expanduser()
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{MODULE_ID}: cannot read script {path}: {error}") from error
    held = _parse(text, path)
    if isinstance(held, list):
        held = {"replies": held}
    if not isinstance(held, dict) or set(cast("dict[str, Any]", held)) != {"replies"}:
        raise ValueError(
            f"{MODULE_ID}: script {path} must be a list of replies, or a mapping with 'replies'"
        )
    return parse_config(_Script, cast("dict[str, Any]", held), f"{MODULE_ID}: {path}").replies


def _parse(text: str, path: Path) -> Any:
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        where = str(path)
        mark = getattr(error, "problem_mark", None)
        if mark is not None:
            where = f"{path}:{mark.line + 1}"
        problem = getattr(error, "problem", None) or error
        raise ValueError(f"{MODULE_ID}: script {where} is not valid YAML: {problem}") from error
