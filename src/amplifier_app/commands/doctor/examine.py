"""`amplifier doctor`: whether what a run needs is in order. Looks, and changes nothing.

machine.py     Python, this program, git, uv, the terminal, proxies
storage.py     keys, cache, sessions: whether they exist, who owns them, whether there is room
documents.py   settings, profiles, the project and whether it is trusted
models.py      providers and their keys; uses the network only when asked to
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from amplifier_app.commands.doctor import documents, machine, models, storage
from amplifier_app.commands.doctor.check import Check

Examination = Callable[[], Iterable[Check]]


def examine(*, online: bool = False) -> Iterator[Check]:
    """Every check, as it is made.

    Args:
        online: Whether the provider that a run would ask is asked for a word.
    """
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
