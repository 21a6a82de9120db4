"""The machine: Python, this program, git, uv, the terminal, proxies."""

from __future__ import annotations

import locale
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

from amplifier_app.commands.doctor.check import Check
from amplifier_support.environment import minimal_environment
from amplifier_support.programs import TimedOut, find_program, run

_OLDEST_PYTHON = (3, 11)
_OLDEST_GIT = (2, 32)
"""The first that takes its whole configuration from variables."""

_SECONDS = 10.0
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def python() -> Iterator[Check]:
    """Its version and which one it is."""
    version = ".".join(map(str, sys.version_info[:3]))
    here = f"{version} at {sys.executable}"
    if sys.version_info < _OLDEST_PYTHON:
        oldest = ".".join(map(str, _OLDEST_PYTHON))
        mend = f"install Amplifier with Python {oldest} or newer"
        yield Check("python", "fail", f"{here} is too old", mend)
    else:
        yield Check("python", "ok", here)


def amplifier() -> Iterator[Check]:
    """Its version, where it is installed, and whether its modules are found."""
    import amplifier_app
    from amplifier_app.base.installed import bundled
    from amplifier_app.base.version import version_line

    where = Path(amplifier_app.__file__).parent
    modules = len(bundled())
    message = f"{version_line().removeprefix('amplifier ')} in {where}, {modules} bundled modules"
    if not modules:
        mend = "install it again: its list of modules is missing"
        yield Check("amplifier", "fail", message, mend)
        return
    yield Check("amplifier", "ok", message)
    overrides = sorted(name for name in os.environ if name.startswith("AMPLIFIER_MODULE_"))
    if overrides:
        listed = ", ".join(overrides)
        mend = "unset them if that is not meant"
        yield Check("amplifier", "warn", f"modules come from variables: {listed}", mend)


def git() -> Iterator[Check]:
    """Only git sources need it."""
    found = find_program("git")
    mend = "install git; only modules from git sources need it"
    if found is None:
        yield Check("git", "warn", "not found", mend)
        return
    said = _output([found, "--version"])
    numbers = re.search(r"(\d+)\.(\d+)", said or "")
    if numbers is None:
        yield Check("git", "warn", f"{found} does not tell its version", mend)
        return
    message = f"{(said or '').removeprefix('git version ')} at {found}"
    if (int(numbers[1]), int(numbers[2])) < _OLDEST_GIT:
        oldest = ".".join(map(str, _OLDEST_GIT))
        yield Check("git", "warn", f"{message} is too old", f"install git {oldest} or newer")
    else:
        yield Check("git", "ok", message)


def uv() -> Iterator[Check]:
    """What modules require is installed with it."""
    mend = "install Amplifier again, or: pip install uv"
    try:
        import uv as library

        found = library.find_uv_bin()
    except (ImportError, OSError):
        yield Check("uv", "warn", "not found; requirements of modules cannot be installed", mend)
        return
    said = _output([found, "--version"])
    if said is None:
        yield Check("uv", "warn", f"{found} does not run", mend)
    else:
        yield Check("uv", "ok", f"{said.removeprefix('uv ')} at {found}")


def terminal() -> Iterator[Check]:
    """What the terminal can do, and whether text is UTF-8 here."""
    ends = [name for fd, name in enumerate(("stdin", "stdout", "stderr")) if _is_tty(fd)]
    term = os.environ.get("TERM", "")
    facts = [f"TERM={term or '(not set)'}", f"terminal on {', '.join(ends) or 'none'}"]
    if os.environ.get("NO_COLOR"):
        facts.append("NO_COLOR is set")
    elif os.environ.get("COLORTERM") in ("truecolor", "24bit"):
        facts.append("all colours")
    if ends and term in ("", "dumb", "unknown"):
        mend = "set TERM, for instance to xterm-256color, for colours and a live region"
        yield Check("terminal", "warn", "; ".join(facts), mend)
    else:
        yield Check("terminal", "ok", "; ".join(facts))
    encoding = locale.getencoding() if sys.version_info >= (3, 11) else ""
    message = f"{encoding}, by {_locale_variable()}"
    if encoding.lower().replace("-", "") != "utf8":
        mend = "export LC_ALL=C.UTF-8, or the UTF-8 locale of your language"
        yield Check("encoding", "warn", message, mend)
    else:
        yield Check("encoding", "ok", message)


def proxies() -> Iterator[Check]:
    """The proxies and certificates that connections are made with."""
    set_ = {name: value for name in _PROXIES for value in [_either_case(name)] if value}
    shown = [f"{name}={_without_login(value)}" for name, value in set_.items()]
    if shown:
        yield Check("proxies", "ok", "; ".join(shown))
    else:
        yield Check("proxies", "ok", "none are set")
    for name in _CERTIFICATES:
        path = os.environ.get(name)
        if path and not os.path.exists(path):
            mend = f"unset it, or give it the path of your certificates: {name}"
            yield Check("certificates", "fail", f"{name} names {path}, which is not there", mend)
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
    return f"{name}={os.environ[name]}" if name else "default: no locale is set"


def _either_case(name: str) -> str | None:
    return os.environ.get(name.lower()) or os.environ.get(name)


def _without_login(value: str) -> str:
    return re.sub(r"^((?:[a-zA-Z][a-zA-Z0-9+.-]*://)?)[^/@]*@", r"\1***@", value)
