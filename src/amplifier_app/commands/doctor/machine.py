"""Checks of the machine: Python, this program, git, uv, the sandbox, the terminal, proxies."""

from __future__ import annotations

import locale
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import amplifier_app
from amplifier_app.base import paths
from amplifier_app.base.installed import bundled_modules
from amplifier_app.base.own_packages import version_line
from amplifier_app.commands.doctor.check import Check
from amplifier_support.environment import minimal_environment
from amplifier_support.programs import TimedOut, find_program, run
from amplifier_support.sandbox import available
from amplifier_support.sandbox.policy import WORKSPACE
from amplifier_support.sandbox.sandbox import Sandbox

_OLDEST_PYTHON = (3, 11)
_OLDEST_GIT = (2, 32)
"""The first version that can be configured by environment variables alone."""

_SECONDS = 10.0
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def python() -> Iterator[Check]:
    """Python's version and path."""
    version = ".".join(map(str, sys.version_info[:3]))
    here = f"{version} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        fix = f"install Amplifier with Python {oldest} or newer"
        yield Check("python", "fail", f"{here} is too old", fix)
    else:
        yield Check("python", "ok", here)


def amplifier() -> Iterator[Check]:
    """The program's version, where it is installed, and its bundled modules."""
    where = Path(amplifier_app.__file__).parent
    modules = len(bundled_modules())
    message = f"{version_line().removeprefix('amplifier ')} in {where}, {modules} bundled modules"
    if not modules:
        fix = "reinstall Amplifier: its list of modules is missing"
        yield Check("amplifier", "fail", message, fix)
        return
    yield Check("amplifier", "ok", message)
    overrides = sorted(name for name in os.environ if name.startswith("AMPLIFIER_MODULE_"))
    if overrides:
        listed = ", ".join(overrides)
        fix = "unset them if this is not intended"
        yield Check("amplifier", "warn", f"module sources set by variables: {listed}", fix)


def git() -> Iterator[Check]:
    """Git, which only git sources need."""
    program = find_program("git")
    fix = "install git; only modules from git sources need it"
    if program is None:
        yield Check("git", "warn", "not found", fix)
        return
    text = _output([program, "--version"])
    numbers = re.search(r"(\d+)\.(\d+)", text or "")
    if numbers is None:
        yield Check("git", "warn", f"{program} does not report its version", fix)
        return
    message = f"{(text or '').removeprefix('git version ')} at {program}"
    if (int(numbers[1]), int(numbers[2])) < _OLDEST_GIT:
        oldest = ".".join(map(str, _OLDEST_GIT))
        yield Check("git", "warn", f"{message} is too old", f"install git {oldest} or newer")
    else:
        yield Check("git", "ok", message)


def uv() -> Iterator[Check]:
    """uv, which installs the dependencies of modules."""
    fix = "reinstall Amplifier, or: pip install uv"
    try:
        import uv as library

        uv_bin = library.find_uv_bin()
    except (ImportError, OSError):
        yield Check("uv", "warn", "not found; cannot install the dependencies of modules", fix)
        return
    text = _output([uv_bin, "--version"])
    if text is None:
        yield Check("uv", "warn", f"{uv_bin} does not run", fix)
    else:
        yield Check("uv", "ok", f"{text.removeprefix('uv ')} at {uv_bin}")


def sandbox() -> Iterator[Check]:
    """The layers of the sandbox for commands that this machine can enforce."""
    kernel = available.kernel_layer()
    if not kernel.works:
        fix = "use another machine, or choose how to go without: amplifier docs sandbox"
        yield Check("sandbox", "fail", f"unavailable: {kernel.detail}", fix)
        return
    yield Check("sandbox", "ok", kernel.detail)
    for gap in kernel.gaps:
        yield Check("sandbox", "warn", gap, "update the kernel to Linux 6.12 or newer")
    namespaces = available.namespace_layer()
    if namespaces.works:
        yield Check("sandbox", "ok", namespaces.detail)
        return
    fix = "allow user namespaces if you can: amplifier docs sandbox"
    message = f"no namespaces: {namespaces.detail}; so {available.WITHOUT_NAMESPACES}"
    yield Check("sandbox", "warn", message, fix)
    own = map(str, (paths.config_dir(), paths.state_dir()))
    for line in Sandbox(WORKSPACE, folder=os.getcwd(), hidden=own).closed_folders:
        yield Check("sandbox", "warn", line, "work in another folder")


def terminal() -> Iterator[Check]:
    """The terminal's capabilities and the text encoding."""
    ends = [name for fd, name in enumerate(("stdin", "stdout", "stderr")) if _is_tty(fd)]
    term = os.environ.get("TERM", "")
    facts = [
        f"TERM={term or '(not set)'}",
        f"terminal on {', '.join(ends)}" if ends else "not a terminal",
    ]
    if os.environ.get("NO_COLOR"):
        facts.append("NO_COLOR is set")
    elif os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        facts.append("24-bit colour")
    if ends and term in ("", "dumb", "unknown"):
        fix = "set TERM, for instance to xterm-256color, for colours and a live region"
        yield Check("terminal", "warn", "; ".join(facts), fix)
    else:
        yield Check("terminal", "ok", "; ".join(facts))
    encoding = locale.getencoding() if sys.version_info >= (3, 11) else ""
    message = f"{encoding}, from {_locale_variable()}"
    if encoding.lower().replace("-", "") != "utf8":
        fix = "export LC_ALL=C.UTF-8, or the UTF-8 locale of your language"
        yield Check("encoding", "warn", message, fix)
    else:
        yield Check("encoding", "ok", message)


def proxies() -> Iterator[Check]:
    """The proxies and certificates for network connections."""
    set_ = {name: value for name in _PROXIES for value in [_either_case(name)] if value}
    shown = [f"{name}={_without_login(value)}" for name, value in set_.items()]
    if shown:
        yield Check("proxies", "ok", "; ".join(shown))
    else:
        yield Check("proxies", "ok", "none")
    for name in _CERTIFICATES:
        path = os.environ.get(name)
        if path and not os.path.exists(path):
            fix = f"unset {name}, or set it to the path of your certificates"
            yield Check(
                "certificates", "fail", f"{name} points to {path}, which does not exist", fix
            )
        elif path:
            yield Check("certificates", "ok", f"{name}={path}")


def _output(command: list[str]) -> str | None:
    """The first line a program prints; None if it fails."""
    try:
        done = run(command, cwd=Path("/"), env=minimal_environment(), seconds=_SECONDS)
    except (OSError, TimedOut):
        return None
    line = done.stdout.strip().partition("\n")[0]
    return line if done.code == 0 and line else None


def _is_tty(fd: int) -> bool:
    try:
        return os.isatty(fd)
    except OSError:
        return False


def _locale_variable() -> str:
    named = (name for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name))
    name = next(named, None)
    return f"{name}={os.environ[name]}" if name else "the default locale (none is set)"


def _either_case(name: str) -> str | None:
    return os.environ.get(name.lower()) or os.environ.get(name)


def _without_login(value: str) -> str:
    return re.sub(r"^((?:[a-zA-Z][a-zA-Z0-9+.-]*://)?)[^/@]*@", r"\1***@", value)
