"""The limit on open files."""

import subprocess
import sys

import pytest

OF_ANOTHER_SYSTEM = """
import sys

sys.platform, sys.modules["resource"] = "win32", None
from amplifier_batch.open_files import allow_many_files

allow_many_files()
"""
RAISED = """
import resource

from amplifier_batch.open_files import allow_many_files

{before}
allow_many_files()
print(*resource.getrlimit(resource.RLIMIT_NOFILE))
"""
LOW = "resource.setrlimit(resource.RLIMIT_NOFILE, (64, 128))"
REFUSED = f"""{LOW}
def refuse(*limits):
    raise ValueError("current limit exceeds maximum limit")
resource.setrlimit = refuse
"""


@pytest.mark.skipif(sys.platform == "win32", reason="has no such limit")
@pytest.mark.parametrize(("before", "limits"), [(LOW, "128 128"), (REFUSED, "64 128")])
def test_it_is_raised_as_far_as_the_system_allows(before: str, limits: str) -> None:
    code = RAISED.format(before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == limits


def test_a_system_without_such_limits_needs_none() -> None:
    subprocess.run([sys.executable, "-c", OF_ANOTHER_SYSTEM], check=True)
