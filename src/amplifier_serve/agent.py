"""The agent as both protocols present it: its name, and the project that it works in."""

from __future__ import annotations

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.own_packages import version_line
from amplifier_app.commands.run.request import Request
from amplifier_app.trust import project_or_fault


def agent_info() -> dict[str, str]:
    """The name and the version of the agent."""
    return {"name": "amplifier", "title": "Amplifier", "version": version_line().split()[-1]}


def without_untrusted_project(request: Request) -> tuple[Request, str]:
    """The request without the project of the working directory if it is not trusted, and what to say then.

    A client cannot be asked whether to trust it.
    """
    project = None if request.trust or request.no_project else project_or_fault()
    if not isinstance(project, ConfigError):
        return request, ""
    text = (
        f"{project.message}: its settings and instructions are ignored. To trust it, run "
        "'amplifier trust' in its directory."
    )
    return request._replace(no_project=True), text
