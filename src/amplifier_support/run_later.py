"""Files and folders whose contents run without being called, or make other programs run something."""

from __future__ import annotations

import os

from amplifier_support.files import is_below

IN_PROJECTS = (
    *(".git", ".amplifier", ".mcp.json", ".vscode", ".idea", ".envrc", ".husky", ".claude"),
    *(".cursor", ".devcontainer", ".github/workflows", ".pre-commit-config.yaml"),
)
"""In the folder of a project: hooks, tasks, settings of editors and of agents."""

SHELL_FILES = (
    *(".bashrc", ".bash_profile", ".bash_login", ".bash_logout", ".bash_aliases", ".profile"),
    *(".zshrc", ".zshenv", ".zprofile", ".zlogin", ".zlogout", ".kshrc", ".mkshrc", ".cshrc"),
    *(".tcshrc", ".login", ".logout", ".xprofile", ".xinitrc", ".xsession", ".xsessionrc"),
)
"""The files that shells and sessions of a desktop run when they start or end."""

IN_HOMES = (
    *SHELL_FILES,
    *(".config/fish", ".config/autostart", ".config/systemd", ".config/environment.d"),
    *(".gitconfig", ".config/git", ".pam_environment"),
)
"""In the home directory: what runs at the next login, or whenever git does."""

_PARTS = [tuple(name.split("/")) for name in IN_PROJECTS]


def runs_later(path: str, base: str) -> bool:
    """True if a file or folder runs later, or makes other programs run something.

    These are `IN_PROJECTS` in any folder below `base`, `IN_HOMES` in the home directory, what links of
    these names lead to, and all of a git repository without a working tree.

    Args:
        path: An absolute path below `base`, links resolved.
        base: The folder of the project, links resolved.
    """
    parts = tuple(os.path.relpath(path, base).casefold().split("/"))
    if any(parts[at : at + len(name)] == name for at in range(len(parts)) for name in _PARTS):
        return True
    home = os.path.expanduser("~")
    places = [os.path.join(base, name) for name in (*IN_PROJECTS, *_hooks(base))]
    places += [os.path.join(home, name) for name in IN_HOMES]
    if any(is_below(path, os.path.realpath(place)) for place in places):
        return True
    above = path
    while parts[-1] != "head" and above != base:
        above = os.path.dirname(above)
        # Git takes a folder with this file for a repository, if the rest is there as well.
        if os.path.lexists(os.path.join(above, "HEAD")):
            return True
    return parts[-1] == "head"


def _hooks(base: str) -> list[str]:
    """The hooks of a repository, which may be links."""
    folder = os.path.join(base, ".git", "hooks")
    try:
        return [os.path.join(folder, name) for name in os.listdir(folder)]
    except OSError:
        return []
