"""Telling where in a module's own code something went wrong: a line its author can go to."""

import sys
from pathlib import Path
from types import FrameType, ModuleType

from pydantic import ValidationError

__all__ = ["line_in", "place_of", "root_of", "told"]


def root_of(module: ModuleType) -> Path | None:
    """The folder or single file that a module's code is in: its top-level package."""
    top = sys.modules.get(module.__name__.partition(".")[0], module)
    if not hasattr(top, "__path__"):
        file = getattr(top, "__file__", None)
        return Path(file).resolve() if file else None
    # A namespace shared with others says nothing; then it is the module's own folder.
    file = getattr(top, "__file__", None) or getattr(module, "__file__", None)
    return Path(file).resolve().parent if file else None


def told(error: BaseException, root: Path | None) -> str:
    """An exception for a report: its type, its message, and where in `root` it came from."""
    named = type(error).__name__
    text = _message(error)
    place = place_of(error, root)
    return (f"{named}: {text}" if text else named) + (f" ({place})" if place else "")


def _message(error: BaseException) -> str:
    if isinstance(error, SyntaxError):
        # Its text tells the file's name and line as well, which the place does better.
        return error.msg
    if not isinstance(error, ValidationError):
        try:
            return str(error).strip()
        # Its class may be the module's own, and do anything.
        except Exception:
            return "(its text cannot be had)"
    # Pydantic's own text shows what was given, which may be a secret, and takes a page for it.
    problems = error.errors(include_url=False, include_input=False)
    listed = (f"{'.'.join(map(str, p['loc'])) or error.title}: {p['msg']}" for p in problems)
    return "; ".join(listed)


def place_of(error: BaseException, root: Path | None) -> str:
    """The innermost line below `root` in an exception's traceback; empty where there is none."""
    if root is None:
        return ""
    if isinstance(error, SyntaxError) and error.filename:
        file = _shown(error.filename, root)
        return f"{file}, line {error.lineno}" if file else ""
    found = ""
    trace = error.__traceback__
    while trace is not None:
        found = line_in(root, trace.tb_frame, trace.tb_lineno) or found
        trace = trace.tb_next
    return found


def line_in(root: Path, frame: FrameType, line: int) -> str:
    """A line of a frame whose code is below `root`, for a person; empty if it is not."""
    file = _shown(frame.f_code.co_filename, root)
    if not file:
        return ""
    name = frame.f_code.co_name
    return f"{file}, line {line}" + (f", in {name}" if name.isidentifier() else "")


def _shown(filename: str, root: Path) -> str:
    path = Path(filename).resolve()
    if path != root and root not in path.parents:
        return ""
    return str(path.relative_to(root.parent))
