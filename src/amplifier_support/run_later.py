"""Files and folders whose contents run without being called, or make other programs run something."""

from __future__ import annotations

from collections.abc import Sequence

IN_PROJECTS = (
    *(
        ".git",
        ".amplifier",
        ".mcp.json",
        ".vscode",
        ".idea",
        ".envrc",
        ".husky",
        ".claude",
        ".cursor",
    ),
    *(".devcontainer", ".github/workflows", ".pre-commit-config.yaml"),
)
"""In the folder of a project: hooks, tasks, settings of editors and of agents."""

IN_HOMES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".cshrc", ".tcshrc"),
    *(".config/fish", ".config/autostart", ".config/systemd", ".config/environment.d"),
    *(".gitconfig", ".config/git", ".xprofile", ".xinitrc", ".xsession", ".pam_environment"),
)
"""In the home directory: what runs at the next login, or whenever git does."""

_PARTS = [tuple(name.split("/")) for name in IN_PROJECTS]


def runs_later(parts: Sequence[str]) -> bool:
    """True if a path, as its parts, leads to one of `IN_PROJECTS` in any folder, or below it."""
    lower = tuple(part.casefold() for part in parts)
    return any(lower[at : at + len(name)] == name for at in range(len(lower)) for name in _PARTS)
