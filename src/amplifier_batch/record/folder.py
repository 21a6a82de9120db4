"""The folder of a batch: its options, its results and its progress.

    batch.json       the plan, the input and the options, with their digests
    plan.yaml        the plan with everything it extends, without secrets
    journal.jsonl    which rows were claimed and ended; each record is on disk before the next step
    results.jsonl    one line for each row that has ended
    scores.jsonl     the scores of rows that have ended; see `amplifier_batch.scores`
    sessions/        the session of each row
    work/            the folders of rows that have one of their own
    status.json      the sums of the journal's first bytes, so that `status` need not read them
    log.txt          what workers and their modules wrote to stdout and stderr
    lock             held by the process that runs the batch
    driver.json      in the copy of a batch at a URL: the process that drove it when the copy was updated

A row has ended once its line is in results.jsonl. A crash can leave a line that the journal does not know
yet; opening the folder for writing adds it.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import secrets
import shlex
import shutil
import time
from collections.abc import Callable, Generator, Iterable, Iterator, Mapping
from pathlib import Path
from types import NoneType
from typing import Any, TypeAlias

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_app.base.file_writing import write_private
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.records import parse_record
from amplifier_app.base.sanitize import one_line
from amplifier_app.render.result import cost_object
from amplifier_app.sessions.folder import SessionFolder
from amplifier_app.sessions.lock import InUse, SessionLock, is_locked
from amplifier_app.sessions.waiting import Waiting
from amplifier_batch.input import build_key
from amplifier_batch.record.journal import Record, change_error, damage_error, scan
from amplifier_batch.record.progress import WAITING, Counts, Progress
from amplifier_batch.record.results import is_result
from amplifier_support import journal as lines
from amplifier_support.files import (
    create_atomically,
    make_private_folder,
    open_to_read,
    system_errors_as,
)
from amplifier_support.journal import Reading
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.usage import add_counts, dollars

SCHEMA_VERSION = 1

_TEXT = (str, NoneType)
_CHANGEABLE: Mapping[str, tuple[type, ...]] = {
    **dict.fromkeys(("workers", "waiting"), (int, NoneType)),
    **dict.fromkeys(("max_cost", "max_forecast", "stop_after", "engine", "address"), _TEXT),
    "cpus": (int, float, NoneType),
    "resources": _TEXT,
    "deadline": (int, float, NoneType),
}
"""The fields of batch.json that commands change, with their types."""

_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "rows": int,
    "repeat": (int, NoneType),
    "request": (dict, NoneType),
    "files": (list, NoneType),
    **dict.fromkeys(("economy", "cache"), (bool, NoneType)),
    **dict.fromkeys(("working_dir", "input", "prompt", "workdir", "shard"), _TEXT),
    **dict.fromkeys(("plan_digest", "lock_digest", "input_digest"), _TEXT),
    **_CHANGEABLE,
}
"""The fields of batch.json that readers need, with their types."""

_PATHS = ("working_dir", "input")


def read_facts(path: Path) -> dict[str, Any]:
    """The facts in the folder of a batch.

    Raises:
        ConfigError: There is no batch.
        SessionError: They are damaged or cannot be read.
    """
    file = path / "batch.json"
    try:
        facts = _read_json(file)
    except (FileNotFoundError, NotADirectoryError):
        label = path.relative_to(Path.cwd()) if path.is_relative_to(Path.cwd()) else path
        hint = f"Start one: amplifier batch run PLAN INPUT -o {shlex.quote(str(label))}"
        if path.is_file():
            hint = "Pass the folder that was given to: amplifier batch run -o FOLDER"
        raise ConfigError(f"there is no batch in {label}", hint=hint, is_usage=True) from None
    except OSError as error:
        raise SessionError(f"cannot read {file}: {error.strerror}") from error
    except (ValueError, RecursionError):
        raise SessionError(f"{file} is damaged: it is not JSON") from None
    version = facts.get("schema_version") if isinstance(facts, dict) else None
    if version != SCHEMA_VERSION:
        raise SessionError(f"{file} is not of a batch that this version can read")
    for name, types in _TYPES.items():
        value = facts.get(name)
        if not isinstance(value, types) or (name in _PATHS and value and "\0" in value):
            raise SessionError(f"{file} is damaged: {name!r} is missing or has the wrong type")
    return facts


def fixed_facts(facts: Mapping[str, Any]) -> dict[str, Any]:
    """The facts that stay the same for the whole batch."""
    return {name: value for name, value in facts.items() if name not in _CHANGEABLE}


def _read_version(file: Path) -> tuple[int, int] | None:
    """A value that changes when a file is replaced."""
    try:
        status = file.stat()
    except OSError:
        return None
    return status.st_ino, status.st_mtime_ns


def with_files(facts: Mapping[str, Any], changed: Callable[[str], str]) -> dict[str, Any]:
    """The facts with other paths of the files that can be saved in the folder."""
    files = dict(facts)
    if isinstance(source := facts.get("input"), str):
        files["input"] = changed(source)
    request = facts.get("request")
    if isinstance(request, dict) and isinstance(schema := request.get("schema"), str):
        files["request"] = {**request, "schema": changed(schema)}
    return files


def relative_to(folder: Path, file: str) -> str:
    """The name of a file that is in a folder; the path of any other."""
    return Path(file).name if Path(file).parent == folder else file


def _read_json(path: Path) -> Any:
    """The content of a JSON file. Raises OSError, ValueError or RecursionError."""
    with open(open_to_read(path), "rb") as file:
        return json.load(file)


RESULTS = "results.jsonl"
SCORES = "scores.jsonl"
WORK = "work"
LOGS = ("journal.jsonl", RESULTS, SCORES)

COPY = ".amplifier-copy.json"
"""The file next to the copy of a batch that is at a URL; see `remote`."""

DRIVER = "driver.json"
SCORING_LOCK = "scoring.lock"
OF_ONE_MACHINE = ("lock", SCORING_LOCK, "status.json", "log.txt", DRIVER)
"""Files that are not part of the record at a URL."""

_SECONDS_ALIVE = 60.0

_SAVED = re.compile(r"input(\.\w+)*|schema\.json")
"""Files that may be in the folder when a batch begins."""


_START = re.compile(
    rb'\{"row":"(?:[^"\\]|\\.)*","number":(\d{1,15}),"repeat":(\d{1,15}),"attempts":\d+,'
    rb'"schema_version":\d+,"outcome":"(\w+)",'
)
"""The start of a line of results: number, repeat and outcome are faster to read without the rest."""

Place: TypeAlias = tuple[int, int, int, int, Path]
"""The place of a result: the numbers of its row and its run, the offset and the number of its line, and the file."""


def read_copy(path: Path) -> dict[str, Any]:
    """Return the facts about the copy of a batch that is at a URL; empty for any other folder."""
    try:
        return _read_json(path.parent / COPY)
    except (OSError, ValueError):
        return {}


def read_driver(path: Path) -> dict[str, Any]:
    """Return the `id`, `host`, `pid` and `time` of the process that drove a batch when its copy was updated."""
    try:
        with open(open_to_read(path / DRIVER), "rb") as file:
            return parse_driver(file.read())
    except OSError:
        return {}


def parse_driver(data: bytes) -> dict[str, Any]:
    """Return the fields of a driver; none if they are missing, or torn by a kill."""
    try:
        driver = json.loads(data)
    except ValueError:
        return {}
    is_known = isinstance(driver, dict) and isinstance(driver.get("time"), (int, float))
    return driver if is_known and "id" in driver and "ended" in driver else {}


def is_alive(driver: Mapping[str, Any]) -> bool:
    """Return True if a driver may be running."""
    return bool(driver) and not driver["ended"] and time.time() - driver["time"] < _SECONDS_ALIVE


class Sealer:
    """Seals what changes in the folder of a batch. This one has nothing to do: the disk of this machine is enough.

    Attributes:
        is_remote: True if rows must wait until their changes are sealed.
        notice: Shows a line to the user.
        lock: Held while the files of the batch change, so that they are sealed in a state that a crash could leave.
    """

    is_remote = False
    notice: Callable[[str], None] = staticmethod(lambda text: None)
    lock: contextlib.AbstractContextManager[Any] = contextlib.nullcontext()

    def begin(self, key: str, session: str) -> None:
        """Begin to follow the files of a row's session."""

    def end(self, key: str) -> None:
        """Seal the files of a row once more, and follow them no longer."""

    def hurry(self) -> None:
        """Do not wait much longer for something that cannot be written: the batch is stopped."""

    async def seal(self, key: str | None = None, folders: Iterable[str] = ()) -> str | None:
        """Wait until all that was written by now is sealed, and return why the row's files are not; None if they are.

        Args:
            key: The row whose files may have changed.
            folders: Further folders of the row.

        Raises:
            SessionError: Nothing can be sealed any more.
        """


class BatchFolder:
    """A batch on disk.

    Attributes:
        path: The folder, absolute.
        shown: The folder as the user named it, or the URL that it is a copy of.
        facts: The content of batch.json.
        sealer: Seals what changes in the folder.
    """

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self.shown: str = read_copy(self.path).get("url") or str(path)
        self.sealer = Sealer()
        self._version = _read_version(self._file)
        self.facts = self._read()

    @classmethod
    def create(cls, path: Path, facts: Mapping[str, Any], plan: str) -> BatchFolder:
        """Begin a batch in a new or empty folder.

        Args:
            path: The folder.
            facts: The content of batch.json.
            plan: The plan as YAML, without secrets.

        Raises:
            ConfigError: There is something in it.
            SessionError: It cannot be created.
        """
        require_unused(path, _SAVED)
        facts = with_files(facts, lambda file: relative_to(path.absolute(), file))
        facts = {"schema_version": SCHEMA_VERSION, **facts, "batch": secrets.token_hex(8)}
        text = json.dumps(facts, indent=2, default=str)
        try:
            for name, content in (("plan.yaml", plan), ("batch.json", text + "\n")):
                create_atomically(path / name, content.encode("utf-8", "backslashreplace"))
        except FileExistsError:  # Another process was faster.
            raise _in_use(path) from None
        except OSError as error:
            raise SessionError(f"cannot write {path}: {error.strerror}") from error
        return cls(path)

    def change(self, values: Mapping[str, Any]) -> None:
        """Change facts, also while another process runs the batch.

        Raises:
            SessionError: The folder cannot be written.
        """
        if not values:
            return
        with changing_settings():
            facts = {**read_facts(self.path), **values}
            write_private(self._file, json.dumps(facts, indent=2, default=str) + "\n")
        self.facts = self._read()

    def refresh(self) -> None:
        """Read the facts again if another process has changed them.

        Raises:
            AppError: They cannot be read.
        """
        version = _read_version(self._file)
        if version != self._version:
            self._version, self.facts = version, self._read()

    def require_unedited(self) -> None:
        """Compare batch.json with the journal, which has the facts that the batch began with.

        Raises:
            ConfigError: A field was edited, except a limit.
            SessionError: One of the files cannot be read.
        """
        begun = self._first_record().get("facts")
        if not isinstance(begun, dict):  # Earlier versions did not record them.
            return
        facts = fixed_facts(read_facts(self.path))
        names = sorted(facts.keys() | begun.keys())
        edited = [repr(name) for name in names if facts.get(name) != begun.get(name)]
        if edited:
            raise ConfigError(
                f"{' and '.join(edited)} in {self.shown}/batch.json changed since the batch began",
                hint="Restore the file, or start a new batch: the results would not be comparable.",
            )

    @property
    def _file(self) -> Path:
        return self.path / "batch.json"

    def _first_record(self) -> Record:
        """The first record of the journal; empty if there is none."""
        path = self.path / "journal.jsonl"
        with contextlib.suppress(OSError), open(open_to_read(path), "rb") as file:
            record = lines.parse(file.readline()) or {}
            return record if record.get("event") == "begun" else {}
        return {}

    def _read(self) -> dict[str, Any]:
        # A saved file is in the folder, wherever that was moved to.
        facts = with_files(read_facts(self.path), lambda file: str(self.path / file))
        folder = facts.get("working_dir")
        if folder and read_copy(self.path) and not os.path.isdir(folder):
            return _move(facts, folder, os.getcwd())  # begun on another machine
        return facts

    @property
    def repeat(self) -> int:
        """The number of runs of each row."""
        return int(self.facts.get("repeat") or 1)

    @property
    def runs(self) -> int:
        """The number of lines of results there will be: one for each run of each row."""
        return int(self.facts["rows"]) * self.repeat

    @property
    def unit(self) -> str:
        """The counted unit: a row, or a run of a row that has several."""
        return "row" if self.repeat == 1 else "run"

    def build_key(self, result: Record) -> str:
        """The key of the run that a line of results describes; see `Row`."""
        return build_key(result["row"], result["repeat"] if self.repeat > 1 else 0)

    def read_name(self, result: Record) -> str:
        """The row that a line of results describes, with its run if there are several."""
        return f"{result['row']} (run {result['repeat']})" if self.repeat > 1 else result["row"]

    @property
    def sessions(self) -> Path:
        """The folder of the rows' sessions."""
        return self.path / "sessions"

    @property
    def lock(self) -> Path:
        """The file that the running batch holds; the folder of a batch may be reached through a link."""
        return _lock_in(self.path)

    def read_totals(self, session: str) -> dict[str, Any]:
        """Return the steps, tokens and cost of a row's session so far, as in the result of a run."""
        folder, usage, steps = SessionFolder(self.sessions / session), dict[str, int](), []
        # Without a session, or with a damaged one, nothing more is known.
        with contextlib.suppress(SessionError):
            steps = folder.conversation().steps
        for step in steps:
            add_counts(usage, step.usage)
        spent = folder.metadata.get("spent") or {}
        cost = None if spent.get("unpriced") else dollars(spent.get("cost_usd"))
        return {"steps": len(steps), "usage": usage, "cost": cost_object(cost)}

    def measure_conversation(self, session: str) -> int:
        """Return the bytes of a row's conversation, which grows with each of its steps."""
        try:
            return (self.sessions / session / "transcript.jsonl").stat().st_size
        except OSError:
            return 0

    @property
    def plan(self) -> str:
        """The plan as YAML, without secrets.

        Raises:
            SessionError: It cannot be read.
        """
        try:
            with open(open_to_read(self.path / "plan.yaml"), encoding="utf-8") as file:
                return file.read()
        except (OSError, UnicodeDecodeError) as error:
            raise SessionError(f"cannot read {self.path / 'plan.yaml'}: {error}") from error

    def counts(self) -> tuple[Counts, bool]:
        """The progress of the batch, and whether a process is running it.

        Raises:
            SessionError: The journal is damaged.
        """
        counts, start = self._snapshot()
        self.scan_journal(counts.add, start)
        return counts, is_locked(self.lock) or is_alive(read_driver(self.path))

    def progress(self) -> Progress:
        """Return the progress of each row.

        Raises:
            SessionError: The journal is damaged.
        """
        progress = Progress(self.repeat)
        self.scan_journal(progress.add)
        return progress

    def scan_journal(self, each: Callable[[Record], None], start: int = 0) -> Reading:
        """Call a function with every record of the journal; see `scan`.

        Raises:
            SessionError: It is damaged, or of another batch.
        """
        path, begun = self.path / "journal.jsonl", self._first_record()
        # Earlier versions did not write this record.
        if begun and begun.get("batch") != self.facts.get("batch"):
            raise SessionError(
                f"{path} belongs to another batch", hint="Restore the file from a copy."
            )
        return scan(path, each, start)

    def results(self, *, by_number: bool = False) -> Iterator[Record]:
        """The lines of results.jsonl that belong to ended rows.

        Args:
            by_number: Whether to sort them by their position in the input; otherwise they are in the order in
                which the rows ended. Only their positions are kept in memory.

        Raises:
            SessionError: They are damaged or cannot be read.
        """
        if by_number:
            yield from self.read_results(self.index_results())
        else:
            for line, number, _, path in self._result_lines():
                yield _read_result(line, path, number)

    def index_results(
        self, each: Callable[[bytes], object] = bool, *, selects: Callable[[str], bool] = bool
    ) -> list[Place]:
        """Call a function with each line of the results, and return their places, in the order of the input.

        Args:
            each: The function.
            selects: Whether to return the place of a line with this outcome.

        Raises:
            SessionError: They cannot be read.
        """
        places: list[Place] = []
        for line, number, offset, path in self._result_lines():
            if match := _START.match(line):
                row, repeat, outcome = int(match[1]), int(match[2]), match[3].decode()
            else:  # not of this version
                record = _read_result(line, path, number)
                row, repeat, outcome = record["number"], record["repeat"], record["outcome"]
            each(line)
            if selects(outcome):
                places.append((row, repeat, offset, number, path))
        return sorted(places)

    def read_results(self, places: list[Place]) -> Iterator[Record]:
        """The results at these places.

        Raises:
            SessionError: They are damaged or cannot be read, or have changed since.
        """
        if not places:
            return
        path = places[0][-1]
        with (
            system_errors_as(SessionError, f"cannot read {path}"),
            open(open_to_read(path), "rb") as file,
        ):
            for number, repeat, offset, line, _ in places:
                file.seek(offset)
                record = _read_result(file.readline(), path, line)
                if (record["number"], record["repeat"]) != (number, repeat):
                    raise damage_error(path, line)
                yield record

    def _result_lines(self) -> Iterator[tuple[bytes, int, int, Path]]:
        """Yield each line of results that belongs to an ended row, its number, its offset and its file."""
        counts, _ = self.counts()
        path = self.path / RESULTS
        if counts.replaced is not None and (self.path / counts.replaced).exists():
            path = self.path / counts.replaced
        left, count = counts.size, 0
        with (
            system_errors_as(SessionError, f"cannot read {path}"),
            contextlib.suppress(FileNotFoundError),
            open(open_to_read(path), "rb") as file,
        ):
            for number, line in enumerate(file, 1):
                if left <= 0:
                    break
                yield line, number, counts.size - left, path
                left, count = left - len(line), number
        if left or count != counts.ended:
            raise change_error(path, count, counts.ended)

    def _snapshot(self) -> tuple[Counts, int]:
        try:
            data = _read_json(self.path / "status.json")
            if data["journal_size"] <= (self.path / "journal.jsonl").stat().st_size:
                return Counts.from_dict(data["counts"]), int(data["journal_size"])
        # Missing, or of a crash: the journal has it all.
        except (OSError, ValueError, KeyError, TypeError, ArithmeticError, RecursionError):
            pass
        return Counts(), 0


def _read_result(line: bytes, path: Path, number: int) -> Record:
    record = parse_record(line)
    if record is None or not is_result(record):
        raise damage_error(path, number)
    return record


def _move(facts: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
    """The facts with the files of a working directory in another one."""

    def move(value: Any) -> Any:
        is_inside = isinstance(value, str) and Path(value).is_relative_to(old)
        return str(Path(new, Path(value).relative_to(old))) if is_inside else value

    request = facts.get("request")
    if isinstance(request, dict):
        names = ("plan", "schema", "lock")
        request = {key: move(value) if key in names else value for key, value in request.items()}
    return {**facts, "working_dir": new, "input": move(facts.get("input")), "request": request}


@contextlib.contextmanager
def holding(lock: Path, name: str, batch: str, address: str) -> Generator[None]:
    """Hold the lock of a batch, so that no other process runs it.

    Raises:
        SessionError: Another one does.
    """
    try:
        held = SessionLock(lock, name)
    except InUse as error:
        raise SessionError(
            f"{batch} is running ({error.holder})",
            hint=f"Show its progress: amplifier batch status {shlex.quote(address)}",
        ) from error
    try:
        yield
    finally:
        held.release()


def is_running(path: str | Path) -> bool:
    """Return True if a process is running the batch in a folder."""
    folder = Path(path)
    return (folder / "batch.json").is_file() and is_locked(_lock_in(folder))


def has_begun(path: Path) -> bool:
    """Return True if a row of the batch in a folder has a session or a result."""
    results = path / RESULTS
    if results.exists() and results.stat().st_size:
        return True
    sessions = path / "sessions"
    return sessions.is_dir() and next(sessions.iterdir(), None) is not None


def require_unused(path: Path, allowed: re.Pattern[str] | None = None) -> None:
    """Create a folder for a batch, if it does not exist.

    Args:
        path: The folder.
        allowed: Matches the names of files that may be in it.

    Raises:
        ConfigError: There is something else in it.
        SessionError: It cannot be created.
    """
    if path.is_symlink() or (path.exists() and not path.is_dir()):
        raise ConfigError(f"{path} is a link or not a folder", hint="Choose a folder with -o.")
    hint = "Choose another folder with -o."
    with system_errors_as(SessionError, f"cannot create {path}", hint=hint):
        make_private_folder(path)
    if (path / "batch.json").exists():
        raise _in_use(path)
    if any(allowed is None or not allowed.fullmatch(entry.name) for entry in path.iterdir()):
        raise ConfigError(f"{path} is not empty", hint="Choose another folder with -o.")


def _lock_in(folder: Path) -> Path:
    return Path(os.path.realpath(folder)) / "lock"


def _in_use(path: Path) -> ConfigError:
    hint = f"Continue it: amplifier batch resume {shlex.quote(str(path))}"
    return ConfigError(f"{path} already contains a batch", hint=hint)


@contextlib.contextmanager
def new_folder(path: Path, *, whole: bool = False) -> Generator[Callable[[], None]]:
    """Create the folder of a batch, and remove it if the block raises before a row has begun or a log was written.

    Args:
        path: The folder; new or empty.
        whole: Whether to remove it later, too: what is in it is a copy.

    Yields a function that removes it without an error, also with a log.

    Raises:
        ConfigError: There is something in it.
        SessionError: It cannot be created.
    """
    created = [candidate for candidate in (path, *path.parents) if not candidate.exists()]

    def remove() -> None:
        if whole or not has_begun(path):
            _remove(path, created)

    require_unused(path)
    try:
        yield remove
    except BaseException:
        log = path / "log.txt"
        # The log may be the only place with the reason why workers failed to start.
        if not (log.exists() and log.stat().st_size):
            remove()
        raise


def _remove(path: Path, created: list[Path]) -> None:
    # Failures to remove something must not hide why the batch was refused.
    for entry in path.iterdir():
        if entry.is_dir():
            shutil.rmtree(entry, ignore_errors=True)
        else:
            entry.unlink(missing_ok=True)
    with contextlib.suppress(OSError):
        for folder in created:
            folder.rmdir()


_MAX_CALL = 200


class WaitingRow(NamedTuple):
    """A run of a row that waits.

    Attributes:
        row: The id of the row.
        key: The key of the run; see `Row.key`.
        name: The row, with its run if there are several.
        session: The folder of its session.
        questions: The questions of the session, answered or not.
        result: Its line of results.
    """

    row: str
    key: str
    name: str
    session: Path
    questions: Waiting
    result: Record

    def as_data(self) -> dict[str, Any]:
        """The row and its questions as JSON data."""
        return {
            "row": self.row,
            "repeat": self.result["repeat"],
            "session_id": self.session.name,
            "questions": [question.as_data() for question in self.questions.questions.values()],
        }

    def list_calls(self) -> Iterator[tuple[str, str, str]]:
        """Yield number, call and state of each question whose answer was not used, each in one line."""
        for question in self.questions.questions.values():
            if not question.is_used:
                call = f"{question.tool} {json.dumps(question.input, ensure_ascii=False)}"
                text = question.text if question.tool is None else call
                yield question.id, one_line(text, _MAX_CALL), question.state


def find_waiting(folder: BatchFolder) -> Iterator[WaitingRow]:
    """Yield the rows that wait, in the order of the input.

    Raises:
        SessionError: The results or a session's questions cannot be read.
    """
    if not folder.counts()[0].outcomes[WAITING]:
        return
    for result in folder.read_results(folder.index_results(selects=WAITING.__eq__)):
        if result["session_id"] is not None:
            session = folder.sessions / result["session_id"]
            key, name = folder.build_key(result), folder.read_name(result)
            yield WaitingRow(result["row"], key, name, session, Waiting(session), result)


def approve_command(folder: BatchFolder, row: str = "") -> str:
    """The command that lists and answers what waits in a batch, or in one row."""
    return " ".join(
        [
            "amplifier batch approve",
            shlex.quote(folder.shown),
            *filter(None, [row and shlex.quote(row)]),
        ]
    )
