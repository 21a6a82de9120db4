"""The sandbox of a session: from its plan, shared with its sub-sessions, and enforced or refused."""

from __future__ import annotations

import contextlib
import json
import logging
import os
from collections.abc import Iterator, Mapping, Sequence
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast

from amplifier_app.base import paths
from amplifier_app.base.errors import ConfigError
from amplifier_app.base.sanitize import visible
from amplifier_app.plan.model import ResolvedPlan
from amplifier_support.files import make_private_folder, open_regular, write_private
from amplifier_support.sandbox.available import remember_in
from amplifier_support.sandbox.policy import PolicyError, is_at_least, parse_policy
from amplifier_support.sandbox.sandbox import Sandbox, SandboxUnavailable
from amplifier_support.session_capabilities import SANDBOX, SESSION_DIR
from amplifier_support.working_folder import working_folder

logger = logging.getLogger(__name__)

_HINT = (
    "Run with --sandbox off, or set 'session.sandbox: {unavailable: warn}' in the plan or in your "
    "settings to go without one where it is unavailable. Details: amplifier docs sandbox"
)


def register_sandbox(coordinator: Any, config: Mapping[str, Any], plan: ResolvedPlan) -> Sandbox:
    """Register the sandbox of a session; that of a sub-session permits no more than its parent's.

    Args:
        coordinator: The session's, with the parent's sandbox if it has one.
        config: The mount plan.
        plan: The plan it comes from. Commands can read its files and, where there are namespaces, not
            change them.

    Returns:
        The sandbox, which is closed with the session that has no parent.

    Raises:
        ConfigError: The plan's value is not a policy.
    """
    session: Mapping[str, Any] = config.get("session") or {}
    remember_in(paths.cache_dir() / "sandbox.json")
    parent = SANDBOX.of(coordinator)
    try:
        policy = parse_policy(session.get("sandbox"))
    except PolicyError as error:
        raise ConfigError(f"session.sandbox: {error}") from error
    if parent is None:
        _make_data_folders(plan)
        folder = SESSION_DIR.of(coordinator)
        # Instructions that it includes are files of the project like others.
        files = [
            *plan.files[:1],
            *(file for file in plan.files if file.suffix in (".yaml", ".yml")),
        ]
        sandbox = Sandbox(
            policy,
            folder=working_folder(),
            hidden=map(str, (paths.config_dir(), paths.state_dir())),
            readable=[
                *(() if folder is None else (os.path.join(folder, "tool-output"),)),
                *(str(plugin.folder) for plugin in plan.plugins.values()),
            ],
            plan_files=map(str, files),
            denied=_denied_paths(config),
        )
        coordinator.register_cleanup(sandbox.close)
        _use_hosts(sandbox, asks=getattr(coordinator.approval_system, "is_interactive", False))
    elif policy != parent.policy and is_at_least(policy, parent.policy):
        sandbox = parent.with_policy(policy)
    else:
        return parent
    SANDBOX.register(coordinator, sandbox)
    return sandbox


def _make_data_folders(plan: ResolvedPlan) -> None:
    """Create the folders that servers of plugins may keep data in.

    Raises:
        ConfigError: One cannot be created.
    """
    for plugin in plan.plugins.values():
        if plugin.data is not None:
            try:
                make_private_folder(plugin.data)
            except OSError as error:
                reason = f"cannot create {plugin.data} for the plugin {plugin.name!r}"
                raise ConfigError(f"{reason}: {error.strerror}") from error


def _use_hosts(sandbox: Sandbox, *, asks: bool) -> None:
    """Permit the hosts that the user has allowed in this folder for always, and let more be allowed.

    Raises:
        ConfigError: The file with them cannot be read.
    """
    file, folder = paths.config_dir() / "sandbox-hosts.json", os.path.realpath(working_folder())

    def store(hosts: Sequence[str]) -> None:
        try:
            known = _read_hosts(file)
            known[folder] = sorted({*known.get(folder, ()), *hosts})
            make_private_folder(file.parent)
            write_private(file, f"{json.dumps(known, indent=2)}\n".encode("ascii"))
        except (ConfigError, OSError) as error:
            logger.warning("cannot store the hosts, so they are for this session only: %s", error)

    allowed = _read_hosts(file).get(folder)
    policy = sandbox.policy_with(allowed) if allowed else None
    if policy is not None:
        sandbox.change(policy)
    if asks:
        sandbox.ask_about_hosts(str(file), store)


def _read_hosts(file: Path) -> dict[str, list[str]]:
    """
    Raises:
        ConfigError: The file cannot be read, or has another content.
    """
    try:
        with open(open_regular(os.path.realpath(file), os.O_RDONLY), "rb") as stream:
            content: Any = json.load(stream)
        return {str(folder): _listed(hosts) for folder, hosts in dict(content).items()}
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(
            f"cannot read the hosts that commands may reach: {visible(str(file))}: {error}",
            hint="Fix or remove the file.",
        ) from error


def _denied_paths(config: Mapping[str, Any]) -> Iterator[str]:
    """The paths that rules deny to every command."""
    rules: list[Any] = list(config.get("approvals") or ())
    for entry in config.get("hooks") or ():
        if entry["module"] == "hooks-approval":
            rules += (entry.get("config") or {}).get("rules") or ()
    for rule in rules:
        if isinstance(rule, Mapping):
            parts = cast("Mapping[str, Any]", rule)
            tools = _listed(parts.get("tool", "*"))
            is_for_commands = any(fnmatchcase("bash", tool) for tool in tools)
            if parts.get("action") == "deny" and not parts.get("command") and is_for_commands:
                yield from _listed(parts.get("path"))


def _listed(value: Any) -> list[str]:
    values = cast("list[Any]", value if isinstance(value, list) else [value])
    return [item for item in values if isinstance(item, str)]


def unused_sandbox(sandbox: Sandbox, config: Mapping[str, Any]) -> str | None:
    """Why a sandbox that the plan or the user asked for restricts nothing; None if all is well.

    Args:
        sandbox: The session's, with all modules mounted.
        config: The mount plan.
    """
    session: Mapping[str, Any] = config.get("session") or {}
    if sandbox.needed or sandbox.policy is None or session.get("sandbox") is None:
        return None
    entries = [entry for section in ("tools", "hooks") for entry in config.get(section) or ()]
    names = [str(entry["module"]) for entry in entries if entry.get("source")]
    if not names:
        return None
    return f"no module uses the sandbox: programs that {', '.join(names)} may start run with your rights"


def own_policies(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """The entries of a plan with a policy of their own, and what it is."""
    for section in ("tools", "hooks"):
        for entry in config.get(section) or ():
            name = str(entry.get("instance_id") or entry["module"])
            own: Mapping[str, Any] = entry.get("config") or {}
            yield from _own_policy(name, own)
            servers = own.get("servers")
            if isinstance(servers, Mapping):
                for server, settings in cast("Mapping[str, Any]", servers).items():
                    yield from _own_policy(f"{name}, server '{server}'", settings)


def _own_policy(name: str, settings: Any) -> Iterator[tuple[str, str]]:
    value = (
        cast("Mapping[str, Any]", settings).get("sandbox")
        if isinstance(settings, Mapping)
        else None
    )
    if value is None:
        return
    # An invalid one is a problem of the entry's config.
    with contextlib.suppress(PolicyError):
        yield name, str(parse_policy(value) or "no sandbox")


def sandbox_for_checks(coordinator: Any) -> Sandbox | None:
    """The sandbox for commands that check an answer; None if the session has none.

    Raises:
        ConfigError: The machine cannot enforce it.
    """
    sandbox = SANDBOX.of(coordinator)
    if sandbox is None:
        return None
    try:
        return sandbox.for_commands()
    except SandboxUnavailable as error:
        raise _unavailable(error.missing) from error


def check_sandbox(sandbox: Sandbox) -> None:
    """Refuse to go on if something needs what the machine cannot enforce.

    Raises:
        ConfigError: It does.
    """
    if sandbox.refused is not None:
        raise _unavailable(sandbox.refused)


def _unavailable(missing: str) -> ConfigError:
    return ConfigError(f"the sandbox for commands is unavailable: {missing}", hint=_HINT)
