"""Questions of a session that wait for an answer: asked by one run, answered later, used once by another.

waiting.jsonl, one record a line:

    {"record": "asked", "id": "1", "key": …, "tool": …, "input": …, "question": …, "agent": …, "at": …}
    {"record": "answered", "id": "1", "decision": …, "text": …, "by": …, "at": …, "expires": …, "seal": …}
    {"record": "used", "id": "1", "at": …}

An answer counts on the machine of the user who gave it: its seal is made with a key of that user, for this session. In a
bundle it is therefore only a proposal, and anyone can see whose. Used seals are kept with the key, so that a copy of an
answer, or of its session, is not used again.
"""

from __future__ import annotations

import getpass
import hashlib
import hmac
import json
import platform
import secrets
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Literal

from amplifier_app.base import paths
from amplifier_app.base.errors import SessionError
from amplifier_app.base.file_writing import read_records
from amplifier_app.base.redact import redactor
from amplifier_app.sessions.conversation import ANSWERED
from amplifier_app.sessions.summary import WAITING_FILE, time_text
from amplifier_support import journal
from amplifier_support.files import make_private_folder, system_errors_as, write_private
from amplifier_support.named_tuple import NamedTuple

_KEY_FILE, _USED_FILE = "waiting.key", "waiting.used.jsonl"

WEEK = 7 * 24 * 3600.0
"""Seconds an answer counts, unless its user chooses another time."""

Decision = Literal["allow", "deny", "answer"]


class Answer(NamedTuple):
    """The answer to a question.

    Attributes:
        decision: Whether the call is allowed or denied, or that `text` is the answer.
        text: What the user says along with it; may be empty.
        by: The user and the machine.
        expires: When it no longer counts, in seconds since the epoch.
        is_own: Whether it was given by this user on this machine, for this session.
        seal: The proof of that.
    """

    decision: Decision
    text: str
    by: str
    expires: float
    is_own: bool
    seal: str = ""

    @property
    def has_expired(self) -> bool:
        return time.time() > self.expires

    @property
    def counts(self) -> bool:
        return self.is_own and not self.has_expired


class Question(NamedTuple):
    """A question that a run could not ask.

    Attributes:
        id: Its number in the session.
        key: Identifies the call or the question exactly; see `Waiting.key_of_call`.
        tool: The tool; None for a question that is not about a tool call.
        input: The input of the call, without secrets.
        text: The question.
        agent: The sub-agent that asks; empty for the session itself.
        answer: The last answer to it.
        is_used: Whether a run has used the answer.
    """

    id: str
    key: str
    tool: str | None
    input: Any
    text: str
    agent: str
    answer: Answer | None = None
    is_used: bool = False

    @property
    def is_open(self) -> bool:
        """True while it has no answer that counts."""
        return not self.is_used and (self.answer is None or not self.answer.counts)

    @property
    def state(self) -> str:
        """`waiting`, `used`, or who has answered it and how."""
        answer = self.answer
        if self.is_used:
            return "used"
        if answer is None:
            return "waiting"
        words = {"allow": "allowed", "deny": "denied", "answer": f"answered {answer.text!r}"}
        state = f"{words[answer.decision]} by {answer.by}"
        if not answer.is_own:
            return f"waiting; {state}, which does not count here"
        return f"waiting; {state}, which has expired" if answer.has_expired else state

    def describe(self) -> str:
        """The question in lines: its number and state, its text, the call."""
        lines = [f"{self.id}  {self.state}", *self.text.splitlines()]
        return "\n   ".join(lines if self.tool is None else [*lines, self.about])

    @property
    def about(self) -> str:
        """The call, or without one the question."""
        if self.tool is None:
            return self.text
        return f"{self.tool} {json.dumps(self.input, ensure_ascii=False)}"

    def as_data(self) -> dict[str, Any]:
        """The question as JSON data."""
        answer = self.answer
        return {
            "id": self.id,
            "state": "used" if self.is_used else "waiting" if self.is_open else "answered",
            "tool": self.tool,
            "input": self.input,
            "question": self.text,
            "agent": self.agent,
            "answer": None if answer is None else answer._asdict() | {"counts": answer.counts},
        }


class Waiting:
    """The questions of one saved session, whose lock must be held to change them.

    Args:
        folder: The session's folder.

    Raises:
        SessionError: They cannot be read.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        used = read_records(paths.config_dir() / _USED_FILE)
        self._used = {str(record.get("seal")) for record in used}
        self.questions: dict[str, Question] = {}
        for record in read_records(folder / WAITING_FILE):
            self._apply(record)

    def _apply(self, record: Mapping[str, Any]) -> None:
        name = str(record.get("id"))
        if record.get("record") == "asked":
            key, text, agent = (
                str(record.get(field) or "") for field in ("key", "question", "agent")
            )
            tool = record.get("tool")
            self.questions[name] = Question(name, key, tool, record.get("input"), text, agent)
        elif (question := self.questions.get(name)) is None:
            return
        elif record.get("record") == "used":
            self.questions[name] = question._replace(is_used=True)
        elif record.get("record") == "answered":
            seal, decision, expires = (
                record.get(field) for field in ("seal", "decision", "expires")
            )
            answer = Answer(
                decision if decision in ("allow", "answer") else "deny",
                str(record.get("text") or ""),
                str(record.get("by")),
                float(expires) if isinstance(expires, (int, float)) else 0.0,
                _is_sealed(record, question.key, self._folder.name),
                str(seal),
            )
            self.questions[name] = question._replace(answer=answer, is_used=seal in self._used)

    def _add(self, record: dict[str, Any]) -> None:
        """Store a record, and return when it is on disk. Raises SessionError."""
        record = {**record, "at": time_text(time.time())}
        with system_errors_as(SessionError, f"cannot write {self._folder / WAITING_FILE}"):
            journal.append(self._folder, WAITING_FILE, record)
        self._apply(record)

    @staticmethod
    def key_of_call(tool: str, values: Mapping[str, Any], working_dir: str) -> str:
        """The key of a tool call: the same for the same tool, input and directory only."""
        call = [tool, values, working_dir]
        return Waiting.key_of_question(json.dumps(call, sort_keys=True, default=repr))

    @staticmethod
    def key_of_question(text: str) -> str:
        """The key of a question that is not about a tool call."""
        return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()

    @property
    def open(self) -> list[Question]:
        """The questions that need an answer, in order."""
        return [question for question in self.questions.values() if question.is_open]

    @property
    def answered(self) -> list[Question]:
        """The questions whose answers count and were not used, in order."""
        return [
            question
            for question in self.questions.values()
            if not question.is_used and not question.is_open
        ]

    def ask(self, key: str, tool: str | None, values: Any, text: str, agent: str) -> Question:
        """Add a question, unless the same one waits already."""
        for question in self.open:
            if question.key == key:
                return question
        name = str(len(self.questions) + 1)
        facts = {"tool": tool, "input": values, "question": text, "agent": agent}
        self._add({"record": "asked", "id": name, "key": key, **redactor().value(facts)})
        return self.questions[name]

    def answer(self, question: Question, decision: Decision, text: str, seconds: float) -> None:
        """Answer a question; the answer counts for so many seconds."""
        record = {
            "record": "answered",
            "id": question.id,
            "decision": decision,
            "text": text,
            "by": f"{getpass.getuser()}@{platform.node()}",
            "expires": round(time.time() + seconds, 3),
        }
        record["nonce"] = secrets.token_hex(16)
        self._add({**record, "seal": _seal(record, question.key, self._folder.name)})

    def _use(self, question: Question, answer: Answer) -> None:
        folder = paths.config_dir()
        with system_errors_as(SessionError, f"cannot write {folder / _USED_FILE}"):
            journal.append(folder, _USED_FILE, {"seal": answer.seal})
        self._used.add(answer.seal)
        self._add({"record": "used", "id": question.id})

    def take(self, key: str) -> Answer | None:
        """Return the answer to a question; one that allows something counts once.

        The use is on disk before this returns, so a run that is killed afterwards does not use it again.
        """
        for question in self.answered:
            if question.key == key:
                assert question.answer is not None
                if question.answer.decision != "deny":
                    self._use(question, question.answer)
                return question.answer
        return None


def _is_sealed(record: Mapping[str, Any], key: str, session: str) -> bool:
    seal = record.get("seal")
    if not isinstance(seal, str) or not seal.isascii():
        return False
    return hmac.compare_digest(seal, _seal(record, key, session))


def _seal(record: Mapping[str, Any], key: str, session: str) -> str:
    """The proof that this user has given an answer to exactly this question of this session."""
    names = ("id", "decision", "text", "by", "expires", "nonce")
    signed = [session, key, *(record.get(name) for name in names)]
    return hmac.new(_own_key(), json.dumps(signed).encode(), hashlib.sha256).hexdigest()


def _own_key() -> bytes:
    """The key of this user on this machine. Raises SessionError."""
    file = paths.config_dir() / _KEY_FILE
    with system_errors_as(SessionError, f"cannot read {file}"):
        if not file.exists():
            make_private_folder(file.parent)
            write_private(file, secrets.token_hex(32).encode())
        return file.read_bytes()


def prompt_of_answers(folder: Path) -> str | None:
    """The prompt that goes on with a session whose questions were answered; None without an answer.

    Raises:
        SessionError: The questions cannot be read.
    """
    if not (folder / WAITING_FILE).exists():
        return None
    lines: list[str] = []
    for question in Waiting(folder).answered:
        answer = question.answer
        assert answer is not None
        if answer.decision == "answer":
            lines.append(f"- answered: {question.about}: {answer.text}")
        else:
            word = "allowed" if answer.decision == "allow" else "denied"
            lines.append(f"- {word}: {question.about}{f' ({answer.text})' if answer.text else ''}")
    if not lines:
        return None
    begin = f"{ANSWERED} Make an allowed call again with exactly the same input."
    return "\n".join([begin, *lines])
