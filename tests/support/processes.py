"""Finds processes that a test has started, also in namespaces of their own.

Commands in the sandbox have process ids of their own, which mean nothing outside. Their working
directory does: give each test a folder, run its commands there, and ask who still is in it.

    assert wait_until(lambda: not processes_in(tmp_path), 2)

Or give them an argument or a variable that no other process of the machine has: `processes_with`.
"""

import os
from pathlib import Path


def is_alive(pid: int) -> bool:
    """Whether a process still does something; a zombie only waits for its parent."""
    try:
        facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return False
    # With other threads, only the first one has ended.
    return facts[0] not in "ZX" or int(facts[17]) > 1


def processes_with(mark: str) -> list[int]:
    """The ids, as seen from here, of live processes with a mark in their command line or environment.

    Other processes of the machine may have any bytes there.
    """
    found: list[int] = []
    for entry in Path("/proc").glob("[0-9]*"):
        if int(entry.name) == os.getpid():
            continue
        try:
            text = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
        except OSError:
            # It ended meanwhile, or is another user's.
            continue
        if os.fsencode(mark) in text and is_alive(int(entry.name)):
            found.append(int(entry.name))
    return found


def processes_in(folder: Path) -> list[int]:
    """The ids, as seen from here, of live processes whose working directory is at or below a folder."""
    top = os.path.realpath(folder)
    found: list[int] = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            place = os.readlink(entry / "cwd")
        except OSError:
            # It ended meanwhile, or is a zombie, which is nowhere.
            continue
        if (place == top or place.startswith(f"{top}/")) and is_alive(int(entry.name)):
            found.append(int(entry.name))
    return found
