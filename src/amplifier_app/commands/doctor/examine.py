"""The checks of `amplifier doctor`, all read-only.

machine.py     Python, this program, git, uv, the sandbox, the terminal, proxies
storage.py     keys, cache, sessions: existence, ownership, disk space
documents.py   settings, profiles, the project and whether it is trusted
models.py      providers and their keys; uses the network only with --online
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator

from amplifier_app.base.errors import AppError
from amplifier_app.commands.doctor import documents, machine, models, storage
from amplifier_app.commands.doctor.check import Check

Examination = Callable[[], Iterable[Check]]


def examine(*, online: bool = False) -> Iterator[Check]:
    """Yield each check as it completes.

    Args:
        online: Whether to test the default provider with a one-word request.
    """
    examinations: list[tuple[str, Examination]] = [
        ("python", machine.python),
        ("amplifier", machine.amplifier),
        ("git", machine.git),
        ("uv", machine.uv),
        ("sandbox", machine.sandbox),
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
        except AppError as error:
            yield Check(name, "fail", error.message, error.hint)
        # An unexpected failure in one examination must not hide the others.
        except Exception as error:
            yield Check(name, "fail", f"the check failed: {type(error).__name__}: {error}")
