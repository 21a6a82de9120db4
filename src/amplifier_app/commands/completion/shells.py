"""Answer the completion scripts of the shells, as `--show-completion` prints them.

Typer's own answers are not used: they know no values, and each takes as long as a run.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Sequence

from typer._completion_shared import _completion_scripts  # pyright: ignore[reportPrivateUsage]

from amplifier_app.commands.completion.candidates import complete

_SAFE = re.compile(r"[\w.@/+=,-]+")
"""What no shell interprets. zsh evaluates an answer, and names come from files of others."""


_BASH = """
%(complete_func)s() {
    local IFS=$'\\n'
    COMPREPLY=( $( env COMP_WORDS="${COMP_WORDS[*]}" \\
                   COMP_CWORD=$COMP_CWORD \\
                   %(autocomplete_var)s=complete_bash $1 ) )
    if [[ ${#COMPREPLY[@]} -eq 1 && ${COMPREPLY[0]} == *[=.] ]]; then
        compopt -o nospace 2>/dev/null
    fi
    return 0
}

complete -o default -F %(complete_func)s %(prog_name)s
"""
"""Typer's script for bash, but without a space after a value that ends with a separator."""


def use_own_script() -> None:
    """Print and install our script for bash in place of Typer's."""
    _completion_scripts["bash"] = _BASH


def answer(instruction: str) -> int | None:
    """Print the answer to a script and return the exit code; None for a shell not known here.

    Args:
        instruction: The value of `_AMPLIFIER_COMPLETE`, such as "complete_bash".
    """
    if instruction not in ("complete_bash", "complete_zsh", "complete_fish"):
        return None
    found = _completions(*(_words_of_bash() if instruction == "complete_bash" else _words_typed()))
    if os.environ.get("_TYPER_COMPLETE_FISH_ACTION") == "is-args":
        return 0 if found else 1
    print(_for_zsh(found) if instruction == "complete_zsh" else "\n".join(found))
    return 0


def _completions(words: Sequence[str], incomplete: str) -> list[str]:
    try:
        return [one for one in complete(words, incomplete) if _SAFE.fullmatch(one)]
    # A message would end up in the line that is being typed.
    except Exception:
        if os.environ.get("AMPLIFIER_DEBUG"):
            raise
        return []


def _words_of_bash() -> tuple[list[str], str]:
    words = os.environ.get("COMP_WORDS", "").splitlines()
    given = os.environ.get("COMP_CWORD", "")
    position = int(given) if given.isdecimal() else 1
    incomplete = words[position] if position < len(words) else ""
    before = words[1:position]
    # bash makes words of `--option=value` as of `--option = value`.
    if incomplete == "=" and before and before[-1].startswith("--"):
        return before, ""
    if len(before) > 1 and before[-1] == "=" and before[-2].startswith("--"):
        before.pop()
    return before, incomplete


def _words_typed() -> tuple[list[str], str]:
    typed = os.environ.get("_TYPER_COMPLETE_ARGS", "")
    try:
        words = shlex.split(typed)[1:]
    except ValueError:  # a quote that is still open
        words = typed.split()[1:]
    if words and not typed.endswith(" "):
        return words[:-1], words[-1]
    return words, ""


def _for_zsh(found: list[str]) -> str:
    """Code for zsh: values that end in a separator get no space after them."""
    if not found:
        return "_files"
    whole = [one for one in found if not one.endswith(("=", "."))]
    parts = [one for one in found if one.endswith(("=", "."))]
    commands = [f"compadd -- {' '.join(whole)}"] if whole else []
    commands += [f"compadd -S '' -- {' '.join(parts)}"] if parts else []
    return "; ".join(commands)
