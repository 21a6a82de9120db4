"""Problems in a plan: reported all at once, each with its location and line."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from types import MappingProxyType

from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan.tree.nodes import MAX_MESSAGE_LENGTH, MAX_PROBLEMS, Budget
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

_SECRET_VALUE = (
    r"(?i)(api[-_]?key|secret|password|token|credentials?|private_?key|authorization)"
    r"([\"']?\s*[:=]\s*)(?!\s*[\"']?\$\{)\S.*"
)
_MAX_LINE = 120
_MANY = 3


class Problem(NamedTuple):
    """One problem.

    Attributes:
        message: One sentence without a full stop.
        at: Its location.
        hint: How to fix it, if known.
        line: The text of the line, if there is one to show.
    """

    message: str
    at: Location
    hint: str | None = None
    line: str | None = None

    def __str__(self) -> str:
        return f"{self.at}: {self.body()}"

    def body(self) -> str:
        """Everything but the location."""
        text = f"{self.message}; {self.hint}" if self.hint else self.message
        excerpt = self._excerpt()
        return f"{text}\n{excerpt}" if excerpt else text

    def _excerpt(self) -> str:
        if self.line is None or self.at.line is None or not self.line.strip():
            return ""
        # One character more than is shown, so that a longer line is marked as cut.
        line = self.line[: _MAX_LINE + 1].rstrip()
        printable = "".join(c if c.isprintable() else " " for c in line)
        shown = re.sub(_SECRET_VALUE, r"\1\2***", printable)
        if len(shown) > _MAX_LINE:
            shown = shown[:_MAX_LINE] + "…"
        number = str(self.at.line)
        text = f"  {number} | {shown}"
        if self.at.column is not None and self.at.column <= len(shown) + 1:
            text += f"\n  {' ' * len(number)} | {' ' * (self.at.column - 1)}^"
        return text


def as_clause(hint: str) -> str:
    """A hint as the end of a problem's line, which begins in lower case."""
    return hint[:1].lower() + hint[1:]


class PlanError(ConfigError):
    """A plan or profile that cannot be used.

    Attributes:
        problems: Everything that is wrong with it, in the order of the file.
    """

    def __init__(self, problems: Sequence[Problem]) -> None:
        self.problems = tuple(problems)
        if len(self.problems) == 1:
            only = self.problems[0]
            super().__init__(only.body(), location=only.at)
        else:
            listed = "\n".join(str(problem) for problem in self.problems)
            is_usage = all(problem.at.is_option for problem in self.problems)
            super().__init__(f"{len(self.problems)} problems:\n{listed}", is_usage=is_usage)


class Problems:
    """Collects problems, and the texts of the files they are in.

    Args:
        texts: Texts that were read before, by file.
        found: Problems that were found before.

    Attributes:
        budget: What the documents may cost together.
    """

    def __init__(
        self, texts: Mapping[str, str] = MappingProxyType({}), found: Iterable[Problem] = ()
    ) -> None:
        self.budget = Budget()
        self._found = list(found)
        self._left_out = 0
        self._notes: dict[str, dict[Location, None]] = {}
        self._texts = dict(texts)

    def add_text(self, file: str, text: str) -> None:
        """Store a file's text for excerpts."""
        self._texts[file] = text

    def add(self, message: str, at: Location, hint: str | None = None) -> None:
        """Add a problem; of very many only the first ones are kept."""
        if len(self._found) > MAX_PROBLEMS:
            self._left_out += 1
            return
        if len(self._found) == MAX_PROBLEMS:
            message, hint = f"only the first {MAX_PROBLEMS} problems are listed", None
        if len(message) > MAX_MESSAGE_LENGTH:
            message = f"{message[: MAX_MESSAGE_LENGTH // 2]}…{message[-MAX_MESSAGE_LENGTH // 2 :]}"
        self._found.append(Problem(message, at, hint))

    def add_cycle(self, what: str, files: Sequence[str], at: Location) -> None:
        """Add that a document leads back to itself, by way of these files, of which it is the first."""
        cycle = " → ".join([*files, files[0]])
        self.add(f"circular {what}: {cycle}", at, "remove one of them")

    @property
    def is_full(self) -> bool:
        """True if further problems are left out: what would only find more of them can stop."""
        return len(self._found) > MAX_PROBLEMS

    def extend(self, problems: Iterable[Problem]) -> None:
        """Add problems that were found elsewhere; their lines are looked up again."""
        self._found += [problem._replace(line=None) for problem in problems]

    @property
    def found(self) -> tuple[Problem, ...]:
        """The problems in the order they were added, without their lines."""
        return tuple(self._found)

    @property
    def texts(self) -> Mapping[str, str]:
        """The stored texts, by file."""
        return self._texts

    def text(self, file: str) -> str:
        """The stored text of a file, or an empty string."""
        return self._texts.get(file, "")

    def note(self, message: str, at: Location) -> None:
        """Add a warning: not a problem, but something the user should know."""
        self._notes.setdefault(message, {})[at] = None

    @property
    def notes(self) -> tuple[str, ...]:
        """The warnings; one that occurs in many places is listed once, with its first location."""
        notes: list[str] = []
        for message, noted in self._notes.items():
            first, *others = noted
            if len(others) < _MANY:
                notes += [f"{at}: {message}" for at in noted]
            else:
                notes.append(f"{first}: {message}; the same in {len(others)} other places")
        return tuple(notes)

    def __len__(self) -> int:
        return len(self._found) + self._left_out

    def any_at(self, at: Location) -> bool:
        """Return True if there is a problem at this location."""
        return any(problem.at == at for problem in self._found)

    def raise_if_any(self) -> None:
        """
        Raises:
            PlanError: If anything was added.
        """
        if self._found:
            raise PlanError(self.sorted_problems())

    def sorted_problems(self) -> list[Problem]:
        """The problems with their lines, in the order of the files."""
        lines = {
            file: self._texts[file].splitlines()
            for file in {problem.at.file for problem in self._found}
            if file in self._texts
        }
        return [_with_line(problem, lines) for problem in _in_order(self._found)]


def _with_line(problem: Problem, texts: Mapping[str, list[str]]) -> Problem:
    lines = texts.get(problem.at.file)
    if lines is None or problem.at.line is None:
        return problem
    number = problem.at.line
    return problem._replace(line=lines[number - 1]) if number <= len(lines) else problem


def _in_order(problems: Iterable[Problem]) -> list[Problem]:
    files: dict[str, int] = {}
    unique = list(dict.fromkeys(problems))
    for problem in unique:
        files.setdefault(problem.at.file, len(files))
    return sorted(unique, key=lambda p: (files[p.at.file], p.at.line or 0, p.at.column or 0))


def suggest(name: str, known: Sequence[str]) -> str:
    """The closest known name, or all of them."""
    return did_you_mean(name, known) or f"available: {', '.join(sorted(known)) or 'none'}"
