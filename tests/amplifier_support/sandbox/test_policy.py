"""The policy of a sandbox as written in a plan, and what it becomes on macOS."""

import re
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_support.sandbox import available, enforcement, seccomp
from amplifier_support.sandbox.policy import (
    READ_ONLY,
    WORKSPACE,
    PolicyError,
    is_at_least,
    parse_policy,
)
from amplifier_support.sandbox.sandbox import Sandbox, SandboxUnavailable

HEADERS = (
    ("x86_64", "/usr/include/x86_64-linux-gnu/asm/unistd_64.h"),
    ("aarch64", "/usr/include/asm-generic/unistd.h"),
)


def test_a_mapping_changes_the_default_policy() -> None:
    assert parse_policy(None) == parse_policy("workspace") == parse_policy({}) == WORKSPACE
    assert parse_policy("read-only") == READ_ONLY
    assert parse_policy("off") is parse_policy(False) is None
    policy = parse_policy({"write": "build", "network": ["A.example", "*.b.example:8443"]})
    assert policy is not None
    assert (policy.write, policy.network) == (("build",), ("a.example", "*.b.example:8443"))
    assert parse_policy(policy.as_value()) == policy


@pytest.mark.parametrize(
    ("value", "key", "said"),
    [
        ("loose", "", "'loose' is not a sandbox policy; expected off, read-only, workspace, or"),
        ("wrokspace", "", "unavailable; did you mean 'workspace'?"),
        (True, "", "true is not"),
        ({"read": "all"}, "read", "'read' is 'all'; expected host or system"),
        (
            {"network": "example.com"},
            "network",
            "'network' is 'example.com'; expected none, all, or",
        ),
        ({"network": ["a b"]}, "network", "'network' contains 'a b'"),
        ({"write": [1]}, "write", "'write' is [1]; expected a list of folders"),
        ({"write": [None]}, "write", "write '~' for your home directory"),
        ({"network": ["a.b:99999"]}, "network", "'network' contains 'a.b:99999'"),
        ({"network": ["a.b:0"]}, "network", "'network' contains 'a.b:0'"),
        ({"write": ["a", ""]}, "write", "'write' contains ''"),
        ({"level": None}, "level", "expected kernel or namespaces"),
        ({"reed": "host"}, "reed", "unknown key 'reed'; expected one of write, read,"),
        ({"wirte": ["."]}, "wirte", "did you mean 'write'?"),
    ],
)
def test_an_invalid_policy_is_named_with_what_is_expected(value: Any, key: str, said: str) -> None:
    with pytest.raises(PolicyError) as raised:
        parse_policy(value)
    assert raised.value.key == key
    assert said in str(raised.value)


@pytest.mark.parametrize(
    ("value", "than", "is_stricter"),
    [
        ("read-only", "workspace", True),
        ("workspace", "read-only", False),
        ("workspace", "off", True),
        ("off", "workspace", False),
        ({"network": ["a.b"]}, {"network": "all"}, True),
        ({"network": "all"}, {"network": ["a.b"]}, False),
        ({"network": ["a.b"]}, {"network": ["a.b", "c.d"]}, True),
        ({"write": [".", "/"]}, "workspace", False),
        ({"level": "namespaces", "read": "system"}, "workspace", True),
        ({"unavailable": "warn"}, "workspace", False),
    ],
)
def test_policies_are_compared_by_what_they_permit(
    value: Any, than: Any, is_stricter: bool
) -> None:
    assert is_at_least(parse_policy(value), parse_policy(than)) is is_stricter


@pytest.mark.parametrize(("machine", "header"), HEADERS)
def test_numbers_of_system_calls_are_those_of_the_kernel(machine: str, header: str) -> None:
    if not Path(header).exists():
        pytest.skip(f"{header} is not installed")
    pattern = r"^#define __NR(?:3264)?_(\w+)\s+(\d+)$"
    numbers = dict(re.findall(pattern, Path(header).read_text(), re.MULTILINE))
    calls = seccomp.ARCHITECTURES[machine].calls
    # The header may be older than the newest calls.
    differing = {
        name: number
        for name, number in calls.items()
        if numbers.get(name, str(number)) != str(number)
    }
    assert differing == {}
    missing = {name for name in calls if name not in numbers}
    assert missing <= {"fchmodat2", "open_tree_attr", "mount_setattr", "quotactl_fd"}


def profile(**changes: Any) -> str:
    values: dict[str, Any] = {
        "write": ["/work", '/a "b"'], "read": ["/"], "hidden": ["/home/u/.ssh"], "internet": False
    }  # fmt: skip
    return enforcement.profile(**{**values, **changes})


def test_the_seatbelt_profile_denies_what_is_not_in_the_policy() -> None:
    text = profile()
    assert text.startswith("(version 1)\n(deny default)\n")
    assert '(allow file-write* (subpath "/work") (subpath "/a \\"b\\""))' in text
    assert "network" not in text
    # The last rule that matches decides.
    assert text.index('(deny file-read* file-write* (subpath "/home/u/.ssh"))') > text.index(
        "(allow file-w"
    )
    assert "(allow network* system-socket)" in profile(internet=True)
    assert "allow file-write* (subpath" not in profile(write=[])


@pytest.mark.skipif(sys.platform != "darwin", reason="Seatbelt is part of macOS")
def test_the_seatbelt_profile_is_accepted_by_the_system(tmp_path: Path) -> None:
    import subprocess

    text = profile(write=[str(tmp_path.resolve())], hidden=[])
    for line, code in ((f"touch {tmp_path}/x", 0), ("touch ~/x-of-amplifier", 1)):
        done = subprocess.run(
            ["/usr/bin/sandbox-exec", "-p", text, "/bin/sh", "-c", line], check=False
        )
        assert done.returncode == code


def test_a_system_without_a_sandbox_goes_without_unless_the_plan_names_one(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """Windows, as a stand-in: only the name of the platform is its own."""
    monkeypatch.setattr(sys, "platform", "win32")
    available.kernel_layer.cache_clear()
    try:
        sandbox = Sandbox(parse_policy(None), folder=str(tmp_path))
        assert sandbox.for_commands().enforced is False
        assert (sandbox.refused, sandbox.goes_without) == (
            None,
            "there is no sandbox for commands on win32",
        )
        named = Sandbox(parse_policy("workspace"), folder=str(tmp_path))
        with pytest.raises(SandboxUnavailable, match="no sandbox for commands on win32"):
            named.for_commands()
    finally:
        monkeypatch.undo()
        available.kernel_layer.cache_clear()
    assert parse_policy(None) == WORKSPACE
