"""`amplifier skill list|show|validate`."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError, ModuleError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.group import eager_group
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.tool.calls import OPTIONS, tool_session
from amplifier_app.commands.typer_options import argument, option, takes_options
from amplifier_app.render.table import Column, OutputOption, table
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime.describe import count
from amplifier_app.sources.loading import load_profile
from amplifier_app.trust import folder_if_trusted, trusted_dir
from amplifier_modules._shared.skills import (
    FILE,
    Catalogue,
    InvalidSkill,
    Skill,
    find_skills,
    list_files,
    list_roots,
    read_instructions,
    read_skill,
)
from amplifier_support.project_folders import project_folders
from amplifier_support.session_capabilities import SKILLS_CHANNEL
from amplifier_support.text import did_you_mean

app = eager_group("List, show and check skills.")

_NameArgument = Annotated[str, argument("NAME", "The skill.")]


@app.command("list")
@takes_options(Request, *(option for option in OPTIONS if option not in ("approve", "mode")))
def list_skills(
    context: typer.Context,
    request: Request,
    servers: Annotated[
        bool, option("--servers", "Mount the plan, and list its skills and its servers'.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """List the skills of this directory: those of a trusted project, your own, and those of plugins.

    \b
      amplifier skill list
      amplifier skill list --servers -f plan.yaml

    With --servers, starts the plan's MCP servers and lists all skills of the plan. Folders with a
    SKILL.md that cannot be used are reported on stderr.
    """
    invocation: Invocation = context.obj
    if servers:
        skills = run_loop(_find_in_plan(request, invocation))
    else:
        catalogue = _find()
        for problem in catalogue.problems:
            to_stderr(for_terminal(f"amplifier: warning: {problem}"))
        skills = [skill._asdict() for skill in catalogue.skills.values()]
    rows = [(skill["name"], skill["origin"], skill["description"]) for skill in skills]
    columns = Column("SKILL"), Column("FROM", drop=1), Column("DESCRIPTION", "wrap", least=30)
    # With --servers, stdout is reserved.
    if output == "json":
        invocation.stdout.write(json_text(skills) + "\n")
        return
    if not skills:
        to_stderr("No skills. They are folders with a SKILL.md: see 'amplifier docs tool-skills'.")
    width = terminal_width(invocation.stdout.fd)
    invocation.stdout.write("".join(f"{line}\n" for line in table(columns, rows, width)))


async def _find_in_plan(request: Request, invocation: Invocation) -> list[dict[str, Any]]:
    async with tool_session(request, invocation, StderrNotices(quiet=False)) as (session, _):
        coordinator = session.session.coordinator
        contributions = await coordinator.collect_contributions(SKILLS_CHANNEL)
        return [skill for contribution in contributions for skill in contribution]


@app.command()
def show(name: _NameArgument) -> None:
    """Show a skill as the model gets it."""
    skills = _find().skills
    skill = skills.get(name)
    if skill is None:
        hint = did_you_mean(name, skills) or "List them with: amplifier skill list"
        raise UsageError(f"there is no skill {name!r} here", hint=hint)
    try:
        text = read_instructions(skill)
    except InvalidSkill as error:
        raise ConfigError(f"{skill.folder}: {error}") from error
    files = "".join(f"\n  {file}" for file in list_files(skill))
    print(for_terminal(f"{skill.description}\n{skill.folder}{files}\n\n{text}"))


@app.command()
def validate(
    folders: Annotated[list[Path], argument("FOLDER...", "Folders with a SKILL.md.")],
) -> None:
    """Check skills against the format of agentskills.io.

    Exits with 3 if one cannot be used, or breaks a rule of the format.
    """
    faults = [fault for folder in folders for fault in _faults(folder)]
    for fault in faults:
        print(for_terminal(fault))
    if faults:
        raise ModuleError(f"{count(len(faults), 'fault')} in {count(len(folders), 'skill')}")
    print("1 skill is valid" if len(folders) == 1 else f"{len(folders)} skills are valid")


def _faults(folder: Path) -> Sequence[str]:
    if not folder.is_dir():
        raise UsageError(f"{folder} is not a folder", hint=f"Pass the folder that has {FILE}.")
    try:
        skill: Skill = read_skill(str(folder.resolve()))
    except InvalidSkill as error:
        return [f"{folder}: {error}"]
    return [f"{folder}: {warning}" for warning in skill.warnings]


def _find() -> Catalogue:
    working_dir = os.getcwd()
    trusted, folders = trusted_dir(working_dir), project_folders(working_dir)
    used = folders[folders.index(trusted) :] if trusted in folders else []
    plugins = load_profile(project=folder_if_trusted()).merged.plugins
    of_plugins = {name: plugin.skills for name, plugin in plugins.items()}
    return find_skills(list_roots(used, str(paths.config_dir()), plugins=of_plugins))
