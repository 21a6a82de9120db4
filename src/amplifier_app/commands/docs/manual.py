"""The manual page of the program, made from its commands."""

from __future__ import annotations

import re
from typing import Any

from amplifier_app import __version__
from amplifier_app.base.outcome import Ending
from amplifier_app.commands.group import amplifier_command
from amplifier_app.commands.help import commands_of, plain_record


def manual() -> str:
    """Return the manual page in the format of man(7)."""
    root = amplifier_command()
    context = root.context_class(root, info_name="amplifier")
    lines = [
        f'.TH AMPLIFIER 1 "" "amplifier {__version__}" "User Commands"',
        ".SH NAME",
        r"amplifier \- run AI agents defined in YAML plans",
        ".SH SYNOPSIS",
        r".B amplifier",
        r"[\fICOMMAND\fR] [\fIOPTIONS\fR] [\fIARGUMENTS\fR]",
        ".SH DESCRIPTION",
        *_text(root.help),
        ".SH COMMANDS",
    ]
    for name, command in commands_of(root, context):
        lines += [f".SS amplifier {_escape(name)}", *_text(command.help)]
        if hasattr(command, "list_commands"):
            continue
        below = command.context_class(command, info_name=name)
        records = (parameter.get_help_record(below) for parameter in command.get_params(below))
        for names, about in (plain_record(*record) for record in records if record is not None):
            lines += [".TP", rf"\fB{_escape(names)}\fR", _escape(about) or r"\ "]
    lines.append(".SH EXIT STATUS")
    for ending in Ending:
        lines += [".TP", rf"\fB{ending.exit_code}\fR", ending.value.replace("_", " ")]
    lines += [
        ".SH SEE ALSO",
        r"The pages of \fBamplifier docs\fR, for example \fBamplifier docs output\fR.",
    ]
    return "\n".join(lines) + "\n"


def _text(text: Any) -> list[str]:
    """A help text, with its examples as they are."""
    lines: list[str] = []
    for paragraph in re.split(r"\n\s*\n", str(text or "").strip()):
        is_example = paragraph.startswith("\b")
        body = paragraph.removeprefix("\b\n")
        words = [_escape(line.rstrip()) for line in body.split("\n") if line.strip()]
        lines += [".PP", *([".nf", *words, ".fi"] if is_example else words)]
    return lines[1:]


def _escape(text: str) -> str:
    text = " ".join(text.split()) if not text.startswith(" ") else text
    text = text.replace("\\", r"\e").replace("-", r"\-")
    return rf"\&{text}" if text.startswith((".", "'")) else text
