"""Answers that are remembered: the later calls they allow, and where they are stored.

An answer applies to a range of calls: exactly this one, or what a rule selects. The rule of an answer is
one like those of a plan, but never allows what the mode `auto` would ask about.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import shlex
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from amplifier_modules._shared.files import guarded_files
from amplifier_modules.hooks_approval.config import MODULE_ID, Rule
from amplifier_modules.hooks_approval.rules import EDITS, Call, danger_in, read_host
from amplifier_support.clock import utc_now
from amplifier_support.files import is_below
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.redaction import Redactor

logger = logging.getLogger(__name__)

FILE_NAME = "approvals.jsonl"

_SUB = """
    git hg svn npm pnpm yarn bun cargo go uv poetry pdm hatch rye pip pip3 pipx conda docker podman helm
    apt apt-get brew dotnet gradle mvn bundle rails mix composer deno terraform flutter dart swift just task
    npx bunx uvx
"""
_SUBCOMMANDS = frozenset(_SUB.split())
"""Programs whose first argument says what they do."""

_ANY = """
    python python2 python3 pypy pypy3 node nodejs perl ruby php lua luajit tclsh osascript Rscript R julia java
    jshell ghci irb ipython awk gawk mawk sed vi vim nvim emacs ed expect tee xdg-open open tar zip man less
"""
_RUN_ANYTHING = frozenset(_ANY.split())
"""Interpreters, and programs that do what their arguments say: no beginning of their commands is offered."""

_AFTER_RUN = {"npm": "run", "pnpm": "run", "yarn": "run", "bun": "run", "deno": "task"}
_RUNS_OTHERS = frozenset({"exec", "run", "dlx", "x", "eval", "create", "shell"})
_SPECIAL = frozenset("*?[]\\ \t\n'\"")


class Range(NamedTuple):
    """Calls that a remembered answer allows.

    Attributes:
        text: The calls, for people.
        rule: The rule that selects them; None for exactly the call that was asked about.
    """

    text: str
    rule: Rule | None = None


def find_ranges(call: Call, redactor: Redactor) -> tuple[list[Range], int]:
    """The ranges that an answer about a call may have, from narrow to wide, and the position of the usual one.

    Args:
        call: The call.
        redactor: Finds secrets; no rule contains one, because it may be stored.
    """
    if call.command is not None:
        ranges = [Range("exactly this command"), *_beginnings(call, redactor)]
        usual = _usual_words(call.words or [])
        named = [n for n, one in enumerate(ranges) if one.rule and _word_count(one.rule) == usual]
        return ranges, named[0] if named else 0
    if call.changes_one_file:
        folders = [*_folders(call)]
        path = call.places[0].real
        shown = os.path.relpath(path, call.base) if is_below(path, call.base) else path
        return [Range(f"{call.tool} {shown}"), *folders], 1 if folders else 0
    host = read_host(call)
    if host is not None:
        rule = Rule(action="allow", tool=call.tool, host=host)
        return [Range("exactly this call"), Range(f"pages of {host}", rule)], 1
    if "url" in call.values or call.tool in EDITS:
        return [Range(f"exactly this call of {call.tool}")], 0
    every = Range(f"every call of {call.tool}", Rule(action="allow", tool=call.tool))
    return [Range(f"exactly this call of {call.tool}"), every], 0


def _beginnings(call: Call, redactor: Redactor) -> Iterator[Range]:
    """The commands that begin like a call's, from its whole command to its first words."""
    words = call.words or []
    plain = next((n for n, word in enumerate(words) if not word or _SPECIAL & {*word}), len(words))
    least = _least_words(words)
    if call.unclear is not None or danger_in(call.command or "") or least is None:
        return
    for count in range(plain, least - 1, -1):
        pattern = " ".join([*words[:count], "*"])
        if redactor.text(pattern) != pattern:
            continue
        action = "sandboxed" if call.is_sandboxed else "allow"
        rule = Rule(action=action, tool=call.tool, command=pattern)
        yield Range(f"commands that start with {shlex.join(words[:count])}", rule)


def _least_words(words: Sequence[str]) -> int | None:
    """The words with which a command must begin to be known by them; None if none suffice."""
    program = words[0].rsplit("/", 1)[-1] if words else ""
    if program in ("python", "python3") and words[1:2] == ["-m"]:
        return 3
    if not program or program in _RUN_ANYTHING:
        return None
    following = words[1] if len(words) > 1 else ""
    if program not in _SUBCOMMANDS:
        return 1
    if not following or following.startswith("-"):
        return None
    if _AFTER_RUN.get(program) == following or (program == "uv" and following == "run"):
        return None if words[2:3] == [] or words[2].split("/")[-1] in _RUN_ANYTHING else 3
    return None if following in _RUNS_OTHERS and program != "cargo" else 2


def _usual_words(words: Sequence[str]) -> int:
    return _least_words(words) or 0


def _word_count(rule: Rule) -> int:
    return len(str(rule.command).split()) - 1


def _folders(call: Call) -> Iterator[Range]:
    """The edits in the folder of a call's file, in the one above and so on, up to the working directory."""
    if not call.edits_inside:
        return
    folder = os.path.dirname(call.places[0].real)
    while is_below(folder, call.base):
        relative = os.path.relpath(folder, call.base)
        inside = relative != os.curdir
        if not _SPECIAL & {*relative}:
            pattern = f"{relative}/**" if inside else "**"
            rule = Rule(action="allow", tool=["write_file", "edit_file"], path=pattern)
            yield Range(f"edits in {relative}/" if inside else "edits in this directory", rule)
        if not inside:
            return
        folder = os.path.dirname(folder)


Selects = Callable[[Rule, Call], bool]
"""Returns True if a rule that allows selects a call."""


class Memory:
    """The calls allowed for this session, and for the project.

    Args:
        folder: The user's own settings folder; None stores nothing beyond the session.
        session: What is allowed for this session, shared with sub-agents.
        selects: Applies a rule to a call.
    """

    def __init__(self, folder: str | None, session: set[str], selects: Selects) -> None:
        self._file = Path(folder) / FILE_NAME if folder else None
        self._session = session
        self._selects = selects
        self._warned = False

    @property
    def file(self) -> str | None:
        """The file in which answers are stored for later sessions; None if they are not."""
        return None if self._file is None else str(self._file)

    def recall(self, call: Call) -> str | None:
        """``session`` or ``always`` if the call was allowed for that long, otherwise None."""
        digest = _digest(call)
        if digest in self._session or any(
            self._allows(json.loads(key), call) for key in self._session if key.startswith("{")
        ):
            return "session"
        if self._file is None:
            return None
        try:
            records = list(guarded_files.read(self._file))
        except OSError as error:
            self._warn(f"cannot read the approvals given for always: {error}")
            return None
        known = any(
            record.get("digest") == digest or self._allows(record, call) for record in records
        )
        return "always" if known else None

    def _allows(self, record: dict[str, Any], call: Call) -> bool:
        fields = record.get("rule")
        if fields is None or record.get("working_dir") != call.base:
            return False
        try:
            rule = Rule.model_validate(fields)
        except ValidationError:
            self._warn(f"ignored an approval that is not valid: {fields!r}")
            return False
        if call.command is not None and danger_in(call.command):
            return False
        return (call.tool not in EDITS or call.edits_inside) and self._selects(rule, call)

    def keep(self, call: Call, range_: Range, *, always: bool) -> None:
        """Remember that calls are allowed; if it cannot be stored, for the session only."""
        about: dict[str, Any] = {"digest": _digest(call)}
        if range_.rule is not None:
            about = {"rule": range_.rule.model_dump(exclude_none=True)}
        record = {**about, "working_dir": call.base}
        key = json.dumps(record) if range_.rule is not None else about["digest"]
        if not always or self._file is None:
            self._session.add(key)
            return
        try:
            guarded_files.append(
                self._file, {**record, "tool": call.tool, "at": utc_now().isoformat()}
            )
        except OSError as error:
            self._session.add(key)
            self._warn(f"cannot store the approval, so it is for this session only: {error}")

    def _warn(self, message: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s: %s", MODULE_ID, message)


def _digest(call: Call) -> str:
    what: Any = dict(call.values)
    if call.changes_one_file:
        what = sorted(place.real for place in call.places)
    about = [call.base, call.tool, what]
    if call.command is not None and call.start != call.base:
        # The same command may mean something else there.
        about.append(call.start)
    if call.command is not None and call.is_sandboxed:
        about.append("sandboxed")
    text = json.dumps(about, sort_keys=True, default=repr)
    return hashlib.sha256(text.encode("ascii")).hexdigest()
