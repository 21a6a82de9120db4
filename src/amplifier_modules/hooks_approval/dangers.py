"""Recognise calls that the mode `auto` still asks about.

Finds operations that are hard to undo or leave the machine, anywhere in a command. The list protects
against accidents, not against a script that hides what it does.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Sequence

from amplifier_modules.hooks_approval.invocations import UNKNOWN, invocations

_MAX_WORDS = 500
_SPLIT = re.compile(r"[\s;&|<>()`$'\"{}\\=]+")

_ALWAYS = """
    sudo doas su pkexec dd mkfs fdisk parted wipefs shred mount umount kill pkill killall shutdown reboot
    halt poweroff systemctl service crontab at ssh scp sftp rsync nc ncat socat telnet ftp useradd userdel
    usermod passwd chown iptables nft eval kubectl terraform aws gcloud az gh
"""
_PROGRAMS = frozenset(_ALWAYS.split())

_WITH: dict[str, str] = {
    "rm": r"-[a-zA-Z]*[rR]|--r",
    "find": r"-delete|-exec|-ok",
    "chmod": r"-[a-zA-Z]*R|--recursive",
    "curl": r"-[a-zA-Z]*[dFTX]|--(data|form|upload|json|request|post)",
    "wget": r"--(post|body|method)",
    "npm": r"publish|unpublish|login",
    "yarn": r"publish",
    "pnpm": r"publish",
    "cargo": r"publish|yank",
    "uv": r"publish",
    "twine": r"upload",
    "gem": r"push|yank",
    "docker": r"push|rm|rmi|system|volume|prune",
    "podman": r"push|rm|rmi|system|volume|prune",
    "truncate": r"",
    "base64": r"-[a-zA-Z]*[dD]|--d",
}
"""Programs that are dangerous if an argument starts with a match of the pattern."""

_GIT: dict[str, str] = {
    "push": "",
    "clean": "",
    "filter-branch": "",
    "filter-repo": "",
    "reset": r"--hard|--merge|--keep",
    "checkout": r"-f|--force|--$|\.$",
    "restore": "",
    "branch": r"-[a-zA-Z]*[DdM]|--delete|--force",
    "stash": r"drop|clear",
    "tag": r"-d|--delete|-f|--force",
    "update-ref": "",
    "reflog": r"expire|delete",
    "gc": "",
    "remote": r"add|set-url|remove|rm",
    "config": "",
    # Programs of other repositories, or named by the option.
    **dict.fromkeys(
        ("log", "show", "diff", "diff-tree", "whatchanged", "grep"),
        r"--ext|--show-si|--submo|--rec|.*%(G|\(sig)|-[^-]*O",
    ),
}
_SHELL_NAMES = "sh bash dash zsh ksh fish python python3 perl ruby node"
_SHELLS = frozenset(_SHELL_NAMES.split())
_FETCHERS = frozenset({"curl", "wget"})


def danger_in(command: str) -> str | None:
    """Why a command is dangerous, as `it …`; None if nothing in it is known to be."""
    if any(unicodedata.category(one)[0] == "C" and one not in "\t\n" for one in command):
        return "it contains invisible characters"
    pieces = [piece for piece in _SPLIT.split(command) if piece]
    found = [
        [piece.rsplit("/", 1)[-1].lower(), *pieces[at + 1 : at + 1 + _MAX_WORDS]]
        for at, piece in enumerate(pieces)
    ]
    runs = invocations(command)
    for words in (*found, *runs):
        danger = _danger_of(words[0], words[1:])
        if danger is not None:
            return danger
    if any(words[0] == UNKNOWN for words in runs):
        return "it runs a program that only the shell knows"
    names = {words[0] for words in found}
    if "|" in command and _FETCHERS & names and _SHELLS & names:
        return "it runs what it downloads"
    if re.search(r">\s*(/dev/(?!null|stdout|stderr|tty)|~|/etc/)", command):
        return "it writes outside the working directory"
    return None


def _danger_of(name: str, arguments: Sequence[str]) -> str | None:
    if name in _PROGRAMS or name.startswith("mkfs."):
        return f"it runs '{name}'"
    if name == "git" and UNKNOWN in "".join(arguments[:1]):
        return "it calls git in a way that is not understood"
    if name == "git" and (found := _git_danger(arguments)):
        return f"it runs 'git {found}'"
    if name in _WITH and any(re.match(_WITH[name], word) for word in arguments):
        return f"it runs '{name}' with arguments that delete, send or cannot be undone"
    return None


def _git_danger(words: Sequence[str]) -> str | None:
    """The subcommand in git's arguments, after its own options, if it is dangerous."""
    for at, word in enumerate(words):
        if word in _GIT:
            wanted = _GIT[word]
            dangerous = any(re.match(wanted, one) for one in words[at + 1 :]) or not wanted
            return word if dangerous else None
        if not word.startswith("-") and (at == 0 or words[at - 1] not in ("-C", "-c")):
            return None
    return None
