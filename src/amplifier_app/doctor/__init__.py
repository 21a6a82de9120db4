"""Is everything there that a run needs? Looks, and changes nothing.

machine.py     Python, this program, git, uv, the terminal, proxies
storage.py     keys, cache, sessions: are they there, whose are they, is there room
documents.py   settings, profiles, the project and whether it is trusted
models.py      providers and their keys; with the network only if asked to
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal, NamedTuple

State = Literal["ok", "warn", "fail"]


class Check(NamedTuple):
    """One thing that was looked at.

    Attributes:
        name: What, in a word.
        state: Whether it is in order (`ok`), may be in the way (`warn`) or is (`fail`).
        message: What was found.
        mend: What to do about it; None if there is nothing to do.
    """

    name: str
    state: State
    message: str
    mend: str | None = None


Examination = Callable[[], Iterable[Check]]


def examine(*, online: bool = False) -> Iterator[Check]:
    """Every check, as it is made.

    Args:
        online: Whether the provider that a run would ask is asked for a word.
    """
    from amplifier_app.doctor import documents, machine, models, storage

    examinations: list[tuple[str, Examination]] = [
        ("python", machine.python),
        ("amplifier", machine.amplifier),
        ("git", machine.git),
        ("uv", machine.uv),
        ("terminal", machine.terminal),
        ("proxies", machine.proxies),
        ("home", storage.home),
        ("keys", storage.keys),
        ("cache", storage.cache),
        ("sessions", storage.sessions),
        ("project", documents.project),
        ("settings", documents.settings),
        ("profiles", documents.profiles),
        ("providers", models.providers),
    ]
    if online:
        examinations.append(("online", models.online))
    for name, examination in examinations:
        try:
            yield from examination()
        # What is examined here may be broken in ways nobody thought of; the others still count.
        except Exception as error:
            yield Check(name, "fail", f"cannot be examined: {type(error).__name__}: {error}")
