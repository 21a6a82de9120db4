"""Racing renames: another process exchanges real files and folders with links that lead outside.

    with racing_renames(workspace, outside):
        ...  # whatever reads or writes `workspace/spot/a.txt`, `workspace/leaf`, `workspace/new/…`

`workspace` is a folder to be attacked, `outside` one that must stay out of reach. Both get content:

    workspace/spot/a.txt        INSIDE      spot  <-> trap      (a link to `outside`)
    workspace/spot/deep/a.txt   INSIDE      deep  <-> trap      (in spot; the same)
    workspace/spot/many/….txt   INSIDE      200 files, which keep a search busy
    workspace/leaf              INSIDE      leaf  <-> leaftrap  (a link to `outside/a.txt`)
    outside/a.txt               OUTSIDE
    outside/deep/a.txt          OUTSIDE
    outside/many/….txt          OUTSIDE
    outside/only-outside.txt    OUTSIDE

Each exchange is one atomic system call (`renameat2`), some 100,000 a second, so that a check by name
followed by a use by name goes wrong several times a second. What was read must never contain OUTSIDE,
and `assert_untouched(outside)` holds when nothing was written there. Linux only.
"""

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

INSIDE = "inside the workspace"
OUTSIDE = "outside of the workspace"

_MANY = {f"many/{number}.txt" for number in range(200)}
_CONTENT = {"a.txt", "deep/a.txt", "only-outside.txt", *_MANY}

_RACER = """
import ctypes, os, sys
exchange = ctypes.CDLL(None, use_errno=True).renameat2
pairs = [tuple(map(os.fsencode, pair.split(":"))) for pair in sys.argv[2:]]
os.chdir(sys.argv[1])
print("racing", flush=True)
while True:
    for one, other in pairs:
        # The folder of a pair is itself a link half of the time.
        exchange(-100, one, -100, other, 2)
"""


@contextlib.contextmanager
def racing_renames(workspace: Path, outside: Path) -> Iterator[None]:
    """Exchange until the block ends; see the module."""
    for path in _CONTENT:
        _write(outside / path, OUTSIDE)
    for path in ("a.txt", "deep/a.txt", *_MANY):
        _write(workspace / "spot" / path, INSIDE)
    _write(workspace / "leaf", INSIDE)
    (workspace / "trap").symlink_to(outside)
    (workspace / "leaftrap").symlink_to(outside / "a.txt")
    (workspace / "spot" / "trap").symlink_to(outside)
    pairs = ["spot:trap", "spot/deep:spot/trap", "leaf:leaftrap"]
    racer = subprocess.Popen(
        [sys.executable, "-S", "-c", _RACER, str(workspace), *pairs], stdout=subprocess.PIPE
    )
    with racer:
        try:
            assert racer.stdout is not None
            assert racer.stdout.readline() == b"racing\n"
            yield
            assert racer.poll() is None
        finally:
            racer.kill()


def assert_untouched(outside: Path) -> None:
    """Nothing was created, changed or removed outside."""
    found = {str(path.relative_to(outside)) for path in outside.rglob("*") if not path.is_dir()}
    assert found == _CONTENT
    assert {(outside / path).read_text() for path in _CONTENT} == {f"{OUTSIDE}\n"}


def _write(file: Path, text: str) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f"{text}\n")
