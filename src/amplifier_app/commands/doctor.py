"""`amplifier doctor`: check the setup and suggest fixes. All checks are read-only."""

from __future__ import annotations

import locale
import logging
import os
import re
import shutil
import stat
import sys
import time
from collections.abc import Callable, Iterable, Iterator
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import amplifier_app
from amplifier_app import trust
from amplifier_app.base import paths
from amplifier_app.base.checks import Check
from amplifier_app.base.errors import AppError, ConfigError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.base.json_text import json_text
from amplifier_app.base.keys import Keyring, KeyringUnavailable, KeyStore, problem_of_key
from amplifier_app.base.logins import LoginStore
from amplifier_app.base.outcome import Ending, to_outcome
from amplifier_app.base.own_packages import version_line
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.typer_options import option
from amplifier_app.plan.documents.profile_paths import profile_names
from amplifier_app.plan.documents.scopes import SCOPES, read_settings, settings_path
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.render.report import Span, lines_of_checks, print_lines
from amplifier_app.render.table import OutputOption
from amplifier_app.runtime import describe, provider_access
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.loading import Fetching, load, load_profile
from amplifier_app.sources.requirements.dependencies import find_uv
from amplifier_app.sources.resolver import resolver_for
from amplifier_support.environment import minimal_environment
from amplifier_support.programs import TimedOut, find_program, run
from amplifier_support.sandbox import available
from amplifier_support.sandbox.policy import WORKSPACE
from amplifier_support.sandbox.sandbox import Sandbox

if TYPE_CHECKING:
    from amplifier_app.base.keys import StoredKey
    from amplifier_app.plan.model import ResolvedPlan
    from amplifier_app.render.report import Line
    from amplifier_app.runtime.provider_access import Provider
    from amplifier_app.sources.resolver import AppModuleSourceResolver

_OLDEST_GIT = (2, 32)
"""The first version that can be configured by environment variables alone."""

_SECONDS = 10.0
_PROXIES = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY")
_CERTIFICATES = ("SSL_CERT_FILE", "SSL_CERT_DIR")


def _ok(name: str, message: str) -> Check:
    return Check(name, True, message)


def _warn(name: str, message: str, fix: str | None) -> Check:
    """A check that found what may cause problems."""
    return Check(name, False, message, "warning", fix)


def _fail(name: str, message: str, fix: str | None = None) -> Check:
    """A check that found what causes problems."""
    return Check(name, False, message, "error", fix)


def check_state(check: Check) -> str:
    """The state of a check: `ok`, `warn` or `fail`."""
    return "ok" if check.passed else "fail" if check.severity == "error" else "warn"


def examine(*, online: bool = False) -> Iterator[Check]:
    """Yield each check as it completes.

    Args:
        online: Whether to test the default provider with a one-word request.
    """
    examinations: dict[str, Callable[[], Iterable[Check]]] = {
        "python": _check_python,
        "amplifier": _check_amplifier,
        "git": _check_git,
        "uv": _check_uv,
        "sandbox": _check_sandbox,
        "terminal": _check_terminal,
        "proxies": _check_proxies,
        "home": _check_home,
        "keys": _check_keys,
        "cache": _check_cache,
        "sessions": _check_sessions,
        "project": _check_project,
        "settings": _check_settings,
        "profiles": _check_profiles,
        "providers": _check_providers,
    }
    if online:
        examinations["online"] = _check_online
    for name, examination in examinations.items():
        try:
            yield from examination()
        except AppError as error:
            yield _fail(name, error.message, error.hint)
        # An unexpected failure in one examination must not hide the others.
        except Exception as error:
            yield _fail(name, f"the check failed: {type(error).__name__}: {error}")


def doctor(
    online: Annotated[
        bool, option("--online", "Also test the default provider with a one-word request.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Check your setup and suggest fixes.

    \b
      amplifier doctor
      amplifier doctor --online

    Checks Python, git, uv, the sandbox, the terminal, keys, settings, profiles, disk space and
    trust. Changes nothing, and stays offline unless you pass --online. Lines marked 'warn' may
    cause problems, lines marked 'FAIL' do; each is followed by a fix. Exits with 78 if a check
    failed.
    """
    # The checks report the missing keys that modules log.
    logging.getLogger().addHandler(logging.NullHandler())
    checks = list(examine(online=online))
    states = [check_state(check) for check in checks]
    failed, warned = states.count("fail"), states.count("warn")
    if output == "json":
        rows = [
            {"name": check.name, "state": state, "message": check.message, "advice": check.advice}
            for check, state in zip(checks, states, strict=True)
        ]
        print(json_text({"ok": not failed, "checks": rows}))
    else:
        verdict = _verdict(failed, warned)
        print_lines(lambda width: [*lines_of_checks(checks, width), [], verdict])
    if failed:
        raise typer.Exit(Ending.CONFIGURATION.exit_code)


def _verdict(failed: int, warned: int) -> Line:
    verdict = [Span(f"{failed} failed", "bad")] if failed else []
    if warned:
        warnings = describe.count(warned, "warning")
        verdict.append(Span(f"{', ' if verdict else ''}{warnings}", "warn"))
    return verdict or [Span("Everything looks good.", "good")]


def _check_python() -> Iterator[Check]:
    """Python's version and path."""
    version = ".".join(map(str, sys.version_info[:3]))
    yield _ok("python", f"{version} at {sys.executable}")


def _check_amplifier() -> Iterator[Check]:
    """The program's version, where it is installed, and its bundled modules."""
    where = Path(amplifier_app.__file__).parent
    modules = len(bundled_modules())
    message = f"{version_line().removeprefix('amplifier ')} in {where}, {modules} bundled modules"
    if not modules:
        yield _fail("amplifier", message, "reinstall Amplifier: its list of modules is missing")
        return
    yield _ok("amplifier", message)
    overrides = sorted(name for name in os.environ if name.startswith("AMPLIFIER_MODULE_"))
    if overrides:
        listed = ", ".join(overrides)
        fix = "unset them if this is not intended"
        yield _warn("amplifier", f"module sources set by variables: {listed}", fix)


def _check_git() -> Iterator[Check]:
    """Git, which only git sources need."""
    program = find_program("git")
    fix = "install git; only modules from git sources need it"
    if program is None:
        yield _warn("git", "not found", fix)
        return
    text = _output([program, "--version"]) or ""
    numbers = re.search(r"(\d+)\.(\d+)", text)
    if numbers is None:
        yield _warn("git", f"{program} does not report its version", fix)
        return
    message = f"{text.removeprefix('git version ')} at {program}"
    if (int(numbers[1]), int(numbers[2])) < _OLDEST_GIT:
        oldest = ".".join(map(str, _OLDEST_GIT))
        yield _warn("git", f"{message} is too old", f"install git {oldest} or newer")
    else:
        yield _ok("git", message)


def _check_uv() -> Iterator[Check]:
    """uv, which installs the dependencies of modules."""
    fix = "reinstall Amplifier, or: pip install uv"
    try:
        uv_bin = find_uv()
    except (ImportError, SourceError):
        yield _warn("uv", "not found; cannot install the dependencies of modules", fix)
        return
    text = _output([uv_bin, "--version"])
    if text is None:
        yield _warn("uv", f"{uv_bin} does not run", fix)
    else:
        yield _ok("uv", f"{text.removeprefix('uv ')} at {uv_bin}")


def _check_sandbox() -> Iterator[Check]:
    """The layers of the sandbox for commands that this machine can enforce."""
    kernel = available.kernel_layer()
    if not kernel.works:
        fix = "use another machine, or choose how to go without: amplifier docs sandbox"
        yield _fail("sandbox", f"unavailable: {kernel.detail}", fix)
        return
    yield _ok("sandbox", kernel.detail)
    for gap in kernel.gaps:
        yield _warn("sandbox", gap, "update the kernel to Linux 6.12 or newer")
    namespaces = available.namespace_layer()
    if namespaces.works:
        yield _ok("sandbox", namespaces.detail)
        return
    fix = "allow user namespaces if you can: amplifier docs sandbox"
    message = f"no namespaces: {namespaces.detail}; so {available.WITHOUT_NAMESPACES}"
    yield _warn("sandbox", message, fix)
    own = map(str, (paths.config_dir(), paths.state_dir()))
    for line in Sandbox(WORKSPACE, folder=os.getcwd(), hidden=own).closed_folders:
        yield _warn("sandbox", line, "work in another folder")


def _check_terminal() -> Iterator[Check]:
    """The terminal's capabilities and the text encoding."""
    ends = [name for fd, name in enumerate(("stdin", "stdout", "stderr")) if os.isatty(fd)]
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
        yield _warn("terminal", "; ".join(facts), fix)
    else:
        yield _ok("terminal", "; ".join(facts))
    encoding = locale.getencoding()
    message = f"{encoding}, from {_locale_variable()}"
    if encoding.lower().replace("-", "") != "utf8":
        fix = "export LC_ALL=C.UTF-8, or the UTF-8 locale of your language"
        yield _warn("encoding", message, fix)
    else:
        yield _ok("encoding", message)


def _check_proxies() -> Iterator[Check]:
    """The proxies and certificates for network connections."""
    values = {name: os.environ.get(name.lower()) or os.environ.get(name) for name in _PROXIES}
    proxies = [f"{name}={_without_login(value)}" for name, value in values.items() if value]
    yield _ok("proxies", "; ".join(proxies) or "none")
    for name in _CERTIFICATES:
        path = os.environ.get(name)
        if path and not os.path.exists(path):
            fix = f"unset {name}, or set it to the path of your certificates"
            yield _fail("certificates", f"{name} points to {path}, which does not exist", fix)
        elif path:
            yield _ok("certificates", f"{name}={path}")


def _output(command: list[str]) -> str | None:
    """The first line a program prints; None if it fails."""
    try:
        done = run(command, cwd=Path("/"), env=minimal_environment(), seconds=_SECONDS)
    except (OSError, TimedOut):
        return None
    line = done.stdout.strip().partition("\n")[0]
    return line if done.code == 0 and line else None


def _locale_variable() -> str:
    named = (name for name in ("LC_ALL", "LC_CTYPE", "LANG") if os.environ.get(name))
    name = next(named, None)
    return f"{name}={os.environ[name]}" if name else "the default locale (none is set)"


def _without_login(value: str) -> str:
    return re.sub(r"^((?:[a-zA-Z][a-zA-Z0-9+.-]*://)?)[^/@]*@", r"\1***@", value)


_LITTLE_ROOM = 500 * 1024 * 1024
_NO_ROOM = 10 * 1024 * 1024
_COUNTING_SECONDS = 0.5
"""Time limit for adding up a folder's size; after it the size is shown as 'more than'."""


def _check_home() -> Iterator[Check]:
    """The folders of settings and state."""
    config, state = paths.config_dir(), paths.state_dir()
    moved = os.environ.get("AMPLIFIER_HOME")
    where = str(config) if config == state else f"settings in {config}, sessions in {state}"
    yield from _folder("home", config, f"{where}{', from AMPLIFIER_HOME' if moved else ''}")


def _check_keys() -> Iterator[Check]:
    """Which keys are stored where, and whether only the user can read them."""
    store, logins = KeyStore(), LoginStore().file
    if logins.exists():
        yield from _private(logins.parent, 0o700)
        yield from _private(logins, 0o600)
    try:
        stored = store.names()
    except ConfigError as error:
        yield _fail("keys", f"{error.location or ''} {error.message}".strip(), error.hint)
        return
    if not stored:
        yield _ok("keys", "none stored; add one with: amplifier init")
        return
    for place in ("keyring", "file"):
        names = [name for name, key in stored.items() if key.where == place]
        if names:
            where = f"in {store.file}" if place == "file" else "in the keyring"
            yield _ok("keys", f"{', '.join(names)} {where}")
    yield from _private(store.folder, 0o700)
    yield from _private(store.file, 0o600)
    for name, key in stored.items():
        if variable := key.overriding(name, os.environ):
            fix = f"unset {variable} to use the stored key"
            yield _warn("keys", key.unused(name, variable), fix)
    if any(key.where == "keyring" for key in stored.values()):
        yield from _keyring()


def _keyring() -> Iterator[Check]:
    try:
        yield _ok("keyring", Keyring().name)
    except KeyringUnavailable as error:
        fix = "unlock or start it, or store the keys in a file: amplifier init --key-in file"
        yield _fail("keyring", str(error), fix)


def _private(path: Path, max_mode: int) -> Iterator[Check]:
    mode = stat.S_IMODE(path.stat().st_mode)
    if os.name != "nt" and mode & ~max_mode:
        message = f"{path} is readable by other users (mode {mode:o})"
        yield _fail("keys", message, f"chmod {max_mode:o} '{path}'")


def _check_cache() -> Iterator[Check]:
    """The cache folder and its size."""
    folder = paths.cache_dir()
    size, whole = _size(folder)
    amount = f"{'' if whole else 'more than '}{describe.size(size)}"
    yield from _folder("cache", folder, f"{folder}, {amount}")


def _check_sessions() -> Iterator[Check]:
    """The sessions folder, the number of sessions and the free disk space."""
    folder = paths.sessions_dir()
    count = sum(1 for entry in _entries(folder) if entry.is_dir(follow_symlinks=False))
    free = shutil.disk_usage(_existing(folder)).free
    message = f"{folder}, {count} saved, {describe.size(free)} free"
    if folder.is_symlink():
        fix = "remove the link, or point AMPLIFIER_HOME at a folder of your own"
        yield _fail(
            "sessions", f"{folder} is a symbolic link; sessions are not saved through it", fix
        )
        return
    if free < _LITTLE_ROOM:
        state = _fail if free < _NO_ROOM else _warn
        yield state("sessions", message, "free some disk space")
        return
    yield from _folder("sessions", folder, message)
    if folder.is_dir() and os.name != "nt":
        mode = stat.S_IMODE(folder.stat().st_mode)
        if mode & 0o077:
            fix = f"chmod 700 '{folder}'"
            yield _warn("sessions", f"readable by other users (mode {mode:o})", fix)


def _folder(name: str, folder: Path, message: str) -> Iterator[Check]:
    """Check that a folder can be written or created."""
    existing = _existing(folder)
    if not existing.is_dir():
        yield _fail(
            name,
            f"{existing} is not a folder",
            "remove it, or set AMPLIFIER_HOME to another folder",
        )
    elif not os.access(existing, os.W_OK | os.X_OK):
        fix = f"make {existing} writable, or set AMPLIFIER_HOME to another folder"
        yield _fail(name, f"{message}; not writable", fix)
    else:
        yield _ok(name, message)


def _existing(path: Path) -> Path:
    """The path itself, or its nearest existing parent."""
    return next(candidate for candidate in (path, *path.parents) if os.path.lexists(candidate))


def _entries(folder: Path) -> list[os.DirEntry[str]]:
    try:
        with os.scandir(folder) as entries:
            return list(entries)
    except OSError:
        return []


def _size(folder: Path) -> tuple[int, bool]:
    """Bytes below a folder, and whether the count is complete."""
    until = time.monotonic() + _COUNTING_SECONDS
    total = 0
    waiting = [folder]
    while waiting:
        for entry in _entries(waiting.pop()):
            if entry.is_dir(follow_symlinks=False):
                waiting.append(Path(entry.path))
            else:
                total += entry.stat(follow_symlinks=False).st_size
        if time.monotonic() > until:
            return total, not waiting
    return total, True


def _check_project() -> Iterator[Check]:
    """The project of the working directory, and whether it is trusted."""
    folder = paths.project_dir()
    if folder is None:
        yield _ok("project", "none (no .amplifier folder here or above)")
    elif trust.ignored_by_environment():
        yield _ok("project", f"{folder} is ignored (AMPLIFIER_NO_PROJECT is set)")
    else:
        try:
            trust.trusted_project(folder)
            yield _ok("project", f"{folder} is trusted")
        except ConfigError as error:
            yield _warn("project", error.message, error.hint)


@cache
def _trusted_folder() -> Path | None:
    """The project's folder; None if there is none or it is not trusted."""
    return trust.folder_if_trusted(quiet=True)


def _check_settings() -> Iterator[Check]:
    """Check that the settings files are readable and valid."""
    folder = _trusted_folder()
    try:
        files = [str(file.path) for file in read_settings(folder).files]
    except PlanError as error:
        for problem in error.problems:
            yield _fail("settings", str(problem), "fix it in the file")
        return
    except ConfigError as error:
        fix = error.hint or "make the file readable, or remove it"
        yield _fail("settings", error.message, fix)
        return
    places = [str(path) for scope in SCOPES if (path := settings_path(scope, folder))]
    nothing = f"none (searched: {', '.join(places)})"
    yield _ok("settings", ", ".join(files) or nothing)


def _check_profiles() -> Iterator[Check]:
    """Check that each profile is a plan that can run here."""
    folder = _trusted_folder()
    try:
        read_settings(folder)
    except ConfigError:
        message = "not checked, because the settings are part of every profile"
        yield _warn("profiles", message, "fix the settings first")
        return
    good: list[str] = []
    offline = Fetching(offline=True)
    for name in profile_names(folder):
        try:
            loaded = load_profile(name, project=folder, fetching=offline)
        except ConfigError as error:
            yield _fail("profiles", f"{name}: {_first_line(error)}", "fix the file")
            continue
        try:
            loaded.resolve()
            good.append(name)
        except ConfigError as error:
            # The profile is valid; what it needs from the environment may be set at another time.
            fix = f"see all problems: amplifier plan show --profile {name}"
            yield _warn("profiles", f"{name}: {_first_line(error)}", fix)
    yield _ok("profiles", ", ".join(good) or "none")
    try:
        default = load_profile(project=folder, fetching=offline).resolve()
        yield _ok("default", f"a run uses the profile {default.name}")
    except ConfigError as error:
        yield _fail("default", str(error), "fix it, or choose another with --profile")


def _first_line(error: ConfigError) -> str:
    return str(error).partition("\n")[0]


_ONLINE_SECONDS = 60.0


def _check_providers() -> Iterator[Check]:
    """The default provider, and where each provider's key comes from."""
    plan = _plan()
    if plan is None:
        return
    try:
        stored = KeyStore().names()
    except ConfigError:
        # The check of the keys reports this.
        stored = {}
    sources = resolver_for(plan, offline=True)
    known = provider_access.all_providers(plan)
    for provider in known:
        yield from run_loop(_provider(provider, sources, stored))
    in_plan = [provider.name for provider in known if provider.in_plan]
    if in_plan == ["local"]:
        message = "only the demo model is available"
        yield _warn("providers", message, "set up a provider: amplifier init")
    elif not in_plan:
        reasons = "; ".join(plan.notes)
        message = f"no provider is available: {reasons or 'the profile lists none'}"
        yield _fail("providers", message, "set one up: amplifier init")


async def _provider(
    provider: Provider, sources: AppModuleSourceResolver, stored: dict[str, StoredKey]
) -> list[Check]:
    try:
        info, ready = await provider_access.describe(provider, sources)
    # A provider may be third-party code.
    except Exception as error:
        state = _fail if provider.in_plan else _warn
        fix = f"for details run: amplifier provider test {provider.name}"
        return [state(provider.name, f"cannot be mounted: {error}", fix)]
    credentials = provider_access.find_credentials(info, provider, stored)
    if credentials:
        message = "; ".join(map(str, credentials))
    elif ready:
        message = "needs no key"
    else:
        message = f"no key ({' or '.join(info.credential_env_vars)})"
    access = provider_access.find_access(info, provider)
    if address := provider_access.describe_address(info, access):
        message = f"{message}; at {address}"
    checks = [_ok(provider.name, message)]
    if provider.in_plan and not ready and not credentials:
        checks = [_warn(provider.name, message, "store one: amplifier init")]
    if access.ignored:
        fix = "unset the variable, or set api_key and base_url together: amplifier docs providers"
        checks.append(_warn(provider.name, access.ignored, fix))
    for credential in credentials:
        value = os.environ.get(credential.variable, "") if credential.where == "environment" else ""
        problem = _problem(value) if value else None
        if problem:
            fix = f"set {credential.variable} to the key without anything else"
            checks.append(_warn(provider.name, f"{credential.variable}: {problem}", fix))
    return checks


def _problem(value: str) -> str | None:
    if value[:1] in "\"'" or value[-1:] in "\"'":
        return "the key is in quotes"
    return problem_of_key(value.strip())


def _check_online() -> Iterator[Check]:
    """Test the default provider with a one-word request."""
    plan = _plan()
    if plan is None:
        return
    try:
        provider = provider_access.find_provider(plan, None)
        answered = run_loop(
            provider_access.ask(provider, resolver_for(plan), timeout=_ONLINE_SECONDS)
        )
    # Any failure is reported as its outcome.
    except Exception as error:
        outcome = to_outcome(error)
        fix = (
            outcome.hint
            or f"for details run: amplifier provider test (exit code {outcome.exit_code})"
        )
        yield _fail("online", outcome.message, fix)
        return
    milliseconds = round(answered.seconds * 1000)
    yield _ok("online", f"{provider.name} answers: {answered.model}, {milliseconds} ms")


def _plan() -> ResolvedPlan | None:
    """The plan of a run without options; None if it is invalid, which other checks report."""
    try:
        return load(project=_trusted_folder(), fetching=Fetching(offline=True))
    except ConfigError:
        return None
