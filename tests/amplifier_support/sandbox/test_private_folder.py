"""The folder for the temporary files of a session's commands."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import os
import shutil
import signal
import sys

from amplifier_support.sandbox.session_state import PrivateFolder

folder = PrivateFolder()
assert os.path.isdir(folder.path)


def interrupt(frame, event, argument):
    if event == "call" and frame.f_code is shutil.rmtree.__code__:
        sys.setprofile(None)
        signal.raise_signal(signal.SIGINT)


sys.setprofile(interrupt)
folder.remove()
"""


def test_a_signal_that_interrupts_its_removal_does_not_keep_it(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM],
        env={**os.environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        text=True,
    )
    assert "KeyboardInterrupt" in done.stderr
    assert not [*tmp_path.iterdir()]
