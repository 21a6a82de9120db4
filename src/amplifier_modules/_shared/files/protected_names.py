"""The names of files and folders that need a grant of their own for writing."""

from __future__ import annotations

from collections.abc import Iterable

_PROTECTED = frozenset({".git", ".amplifier"})
_SHELL_FILES = frozenset(
    {
        ".bash_aliases",
        ".bash_login",
        ".bash_logout",
        ".bash_profile",
        ".bashrc",
        ".cshrc",
        ".kshrc",
        ".login",
        ".logout",
        ".mkshrc",
        ".profile",
        ".tcshrc",
        ".xinitrc",
        ".xprofile",
        ".xsession",
        ".xsessionrc",
        ".zlogin",
        ".zlogout",
        ".zprofile",
        ".zshenv",
        ".zshrc",
    }
)
# A macOS file system compares names without these characters, so `.g\u200cit` is `.git` there.
_IGNORED = dict.fromkeys(
    [*range(0x200B, 0x2010), *range(0x202A, 0x202F), *range(0x206A, 0x2070), 0xFEFF]
)


def protected_name(parts: Iterable[str]) -> str | None:
    """The first of `parts` that needs a grant of its own for writing, or None.

    Names are compared as the most lenient file systems do: without case, invisible characters,
    and what Windows drops at the end.
    """
    below_config = False
    for part in parts:
        name = part.translate(_IGNORED).casefold().partition(":")[0].rstrip(". ")
        if name in _PROTECTED or name in _SHELL_FILES or name in ("git~1", "config.fish"):
            return part
        if below_config and name == "fish":
            return part
        below_config = name == ".config"
    return None
