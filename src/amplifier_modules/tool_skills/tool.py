"""The tool `skill`, which gives the model the instructions of a skill."""

import logging
import os
from typing import Any

from pydantic import Field

from amplifier_core.models import ToolResult
from amplifier_modules._shared.module.config import ModuleConfig
from amplifier_modules._shared.module.tools import CheckedTool
from amplifier_modules._shared.skills import (
    FILE,
    Catalogue,
    InvalidSkill,
    find_skills,
    hash_files,
    list_files,
    list_roots,
    read_instructions,
)
from amplifier_support.project_folders import project_folders
from amplifier_support.session_capabilities import (
    CONFIG_DIR,
    SKILLS_CHANNEL,
    TRUSTED_DIR,
    WORKING_DIR,
)
from amplifier_support.text import cut_text

logger = logging.getLogger(__name__)

MODULE_ID = "tool-skills"
LOADED = "skill:loaded"
"""Event: the model was given a skill."""
_MAX_CATALOGUE = 16_000
"""Characters of all descriptions; with more skills, each gets fewer."""
_SHORTEST = 60


class SkillsConfig(ModuleConfig):
    """Settings of tool-skills.

    Attributes:
        paths: More folders with skills, which count before all others.
        plugins: Folders with the skills of plugins, by the plugin's name; they count after all others.
        project: Whether skills of a trusted project are used.
        user: Whether the user's own skills are used.
    """

    paths: list[str] = Field(default_factory=list[str])
    plugins: dict[str, list[str]] = Field(default_factory=dict[str, list[str]])
    project: bool = True
    user: bool = True


class SkillTool(CheckedTool):
    """Loads a skill; mounted only if there are some.

    Args:
        coordinator: The session's coordinator.
        catalogue: The skills.

    Attributes:
        description_parts: The line of each skill in the description, by its name.
        skill_files: The file of each skill, by its name.
    """

    name = "skill"
    failures = (InvalidSkill,)

    def __init__(self, coordinator: Any, catalogue: Catalogue) -> None:
        self._coordinator = coordinator
        self._skills = catalogue.skills
        self._loaded: set[str] = set()
        self._pins: dict[str, dict[str, str]] = {}
        limit = max(_SHORTEST, _MAX_CATALOGUE // len(self._skills))
        self.description_parts = {
            skill.name: f"- {skill.name}: {cut_text(skill.description, limit)}"
            for skill in self._skills.values()
        }
        self.skill_files = {
            skill.name: os.path.join(skill.folder, FILE) for skill in self._skills.values()
        }
        self.description = (
            "Load a skill: instructions for a kind of task, written by experts in it. Load a skill as "
            "soon as a task is of its kind, before you begin, and follow it. Skills:\n"
            + "\n".join(self.description_parts.values())
        )
        self.input_schema: dict[str, Any] = {  # pyright: ignore[reportIncompatibleVariableOverride]
            "type": "object",
            "properties": {
                "name": {
                    "type": "string",
                    "enum": list(self._skills),
                    "description": "The skill to load.",
                }
            },
            "required": ["name"],
        }

    def list_pins(self) -> dict[str, dict[str, str]]:
        """Return the files of each skill but for the user's own; from now on they must stay as they are.

        Raises:
            InvalidSkill: A file cannot be read.
        """
        self._pins = {
            skill.name: hash_files(skill)
            for skill in self._skills.values()
            if skill.origin != "user"
        }
        return {f"skill {name}": files for name, files in self._pins.items()}

    async def run(self, values: dict[str, Any]) -> ToolResult:
        skill = self._skills.get(values["name"])
        if skill is None:
            raise InvalidSkill(f"there is no skill {values['name']!r}: {', '.join(self._skills)}")
        pinned = self._pins.get(skill.name)
        if pinned is not None and hash_files(skill) != pinned:
            raise InvalidSkill(f"the skill {skill.name!r} has changed since the session began")
        text, files = read_instructions(skill), list_files(skill)
        self._loaded.add(skill.name)
        await self._coordinator.hooks.emit(LOADED, {"name": skill.name, "folder": skill.folder})
        parts = [f'<skill_content name="{skill.name}">', text, "", f"Folder: {skill.folder}"]
        if files:
            parts.append("Files in it: " + ", ".join(files))
        return ToolResult(output="\n".join([*parts, "</skill_content>"]))

    def list_skills(self) -> list[dict[str, Any]]:
        """Return the name, the origin and the description of each skill, and whether it was loaded."""
        return [
            {**skill._asdict(), "loaded": skill.name in self._loaded}
            for skill in self._skills.values()
        ]


async def _list_as_text(coordinator: Any) -> str:
    """List the skills of a session for the chat, also those of MCP servers."""
    skills = [
        skill
        for contribution in await coordinator.collect_contributions(SKILLS_CHANNEL)
        for skill in contribution
    ]
    widths = {key: max((len(one[key]) for one in skills), default=0) for key in ("name", "origin")}
    lines = [
        f"{'*' if one['loaded'] else ' '} {one['name']:{widths['name']}}  "
        f"{one['origin']:{widths['origin']}}  {cut_text(one['description'], 200)}"
        for one in skills
    ]
    return "\n".join(lines) or "There are no skills."


async def mount(coordinator: Any, settings: SkillsConfig) -> None:
    """Mount `skill`, if there are skills. Settings as in `SkillsConfig`."""
    working_dir = WORKING_DIR.of(coordinator) or os.getcwd()
    trusted, folders = TRUSTED_DIR.of(coordinator), project_folders(working_dir)
    used = folders[folders.index(trusted) :] if trusted is not None and trusted in folders else []
    roots = list_roots(
        used if settings.project else [],
        CONFIG_DIR.of(coordinator) if settings.user else None,
        [os.path.join(working_dir, os.path.expanduser(path)) for path in settings.paths],
        settings.plugins,
    )
    if not settings.user:
        roots = [root for root in roots if root.origin != "user"]
    catalogue = find_skills(roots)
    for problem in catalogue.problems:
        logger.warning("a skill is left out: %s", problem)
    coordinator.register_contributor("observability.events", MODULE_ID, lambda: [LOADED])
    command = {
        "name": "skills",
        "summary": "List the skills; * marks those that were loaded",
        "handler": lambda _: _list_as_text(coordinator),
        "during_turn": True,
    }
    coordinator.register_contributor("chat.commands", MODULE_ID, lambda: command)
    if not catalogue.skills:
        return
    tool = SkillTool(coordinator, catalogue)
    coordinator.register_contributor(SKILLS_CHANNEL, MODULE_ID, tool.list_skills)
    coordinator.register_contributor("lock.pins", MODULE_ID, tool.list_pins)
    await coordinator.mount("tools", tool, name=tool.name)
