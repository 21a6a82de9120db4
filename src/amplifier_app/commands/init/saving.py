"""Saves the choice: the key in the keyring or key file, the rest in the user's settings."""

from __future__ import annotations

from pathlib import Path
from typing import Any, NamedTuple

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import KeyStore, Stored, Where, environment
from amplifier_app.base.locks import changing_settings
from amplifier_app.commands.init.setup import Choice, user_plan
from amplifier_app.plan.documents.scopes import USER, read_settings, settings_path
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree import edit
from amplifier_app.plan.tree.entries import entry_key
from amplifier_app.plan.tree.nodes import ListNode, MapNode, plain_data
from amplifier_support.provider_order import configured_priority, first_provider

_FIRST = 10
"""The priority of the provider set up last; the default is 100."""


class Saved(NamedTuple):
    """What was saved.

    Attributes:
        file: The settings file.
        changed: The changes to it, a few words each; empty if it was up to date.
        stored: Where the key was stored; None without a new key.
        asked_first: Whether a run without options now uses this provider.
    """

    file: Path
    changed: tuple[str, ...]
    stored: Stored | None
    asked_first: bool


def changes_of(choice: Choice) -> dict[str, Any]:
    """The changes to the provider's entry in the settings: address → value.

    Other providers' entries are never changed: the provider gets a priority ahead of theirs. A
    condition that would skip the chosen provider is removed.
    """
    entries = _entries(user_plan())
    provider = choice.provider
    key = provider.instance_id or provider.module
    entry = entries.get(key, {})
    config: dict[str, Any] = entry.get("config") or {}
    changes: dict[str, Any] = {}
    if not _holds(entry.get("when") or {}, choice):
        changes["when"] = None
    wanted = dict(choice.changes)
    offer = choice.offer
    if choice.key and not offer.reads_variable and offer.secret is not None:
        wanted[offer.secret.id] = f"${{{offer.variable}}}"
    for name, value in wanted.items():
        if value != config.get(name):
            changes[f"config.{name}"] = value
    if not _is_first(key, entries):
        others = [
            configured_priority(one.get("config")) for name, one in entries.items() if name != key
        ]
        changes["config.priority"] = min([_FIRST, *(other - 1 for other in others)])
    return changes


def _holds(when: dict[str, Any], choice: Choice) -> bool:
    """Whether a condition is met once the key is stored."""
    if when.get("no_other"):
        return False
    named = when.get("env") or []
    names = [named] if isinstance(named, str) else list(named)
    stored = choice.offer.variable if choice.key else None
    return not names or stored in names or any(environment().get(name) for name in names)


def _is_first(key: str, entries: dict[str, dict[str, Any]]) -> bool:
    """Whether the provider precedes all others in the plan."""
    first = first_provider(
        entries.items(),
        None,
        name=lambda item: item[0],
        priority=lambda item: configured_priority(item[1].get("config")),
    )
    return first is not None and first[0] == key


@changing_settings()
def save(choice: Choice, where: Where | None = None) -> Saved:
    """Store the key and write the settings; if either fails, both stay unchanged.

    Args:
        choice: The choice to save.
        where: Where to store the key; by default the keyring, or the file if there is none.

    Raises:
        ConfigError: The settings or the key file cannot be read, changed or written.
    """
    file = settings_path(USER)
    assert file is not None
    changes = changes_of(choice)
    variable = choice.offer.variable
    store = KeyStore()
    before = _before(store, variable) if choice.key is not None else None
    stored: Stored | None = None
    try:
        if choice.key is not None and variable is not None:
            stored = store.store(variable, choice.key, where)
        _write(file, choice, changes)
    except BaseException:
        if choice.key is not None and variable is not None:
            _restore(store, variable, before)
        raise
    key = choice.provider.instance_id or choice.provider.module
    first = user_plan().default_provider == key
    lines = tuple(_describe(name, value) for name, value in changes.items())
    return Saved(file, lines, stored, first)


def _write(file: Path, choice: Choice, changes: dict[str, Any]) -> None:
    if not changes:
        return
    provider = choice.provider
    key = provider.instance_id or provider.module
    gone = [name for name, value in changes.items() if value is None and name != "when"]
    kept = {name: value for name, value in changes.items() if name not in gone}
    if key in _own_entries():
        for name in gone:
            edit.remove_value(file, ["providers", key, *name.split(".")])
        edit.set_values(
            file, [(["providers", key, *name.split(".")], value) for name, value in kept.items()]
        )
        return
    entry: dict[str, Any] = {"module": provider.module}
    if provider.instance_id:
        entry["instance_id"] = provider.instance_id
    for name, value in kept.items():
        if name.startswith("config."):
            entry.setdefault("config", {})[name.removeprefix("config.")] = value
        else:
            entry[name] = value
    edit.append_value(file, ["providers"], entry)


def _own_entries() -> set[str]:
    """The keys of the providers in the user's settings."""
    for settings in read_settings().files:
        node = settings.tree.items.get("providers")
        entries = node.items if isinstance(node, ListNode) else []
        return {key for entry in entries if (key := entry_key(entry))}
    return set()


def _entries(plan: ResolvedPlan) -> dict[str, dict[str, Any]]:
    """The providers of a plan by entry key, including those that conditions skip."""
    node = plan.merged.document.items.get("providers")
    entries = node.items if isinstance(node, ListNode) else []
    return {
        key: plain_data(entry)
        for entry in entries
        if isinstance(entry, MapNode) and (key := entry_key(entry))
    }


def _describe(name: str, value: Any) -> str:
    setting = name.removeprefix("config.")
    if setting == "when":
        return "enabled"
    if setting == "priority":
        return "used first"
    return f"{setting} {value}" if value is not None else f"{setting} reset to the default"


def _before(store: KeyStore, variable: str | None) -> tuple[str | None, Where] | None:
    """The key that a new one replaces; its value is None if the keyring does not reveal it."""
    where = store.names().get(variable) if variable else None
    if variable is None or where is None:
        return None
    try:
        return store.read(variable), where
    except ConfigError:
        return None, where


def _restore(store: KeyStore, variable: str, before: tuple[str | None, Where] | None) -> None:
    if before is None:
        store.forget(variable)
        return
    value, where = before
    if value is not None:
        store.store(variable, value, where)
