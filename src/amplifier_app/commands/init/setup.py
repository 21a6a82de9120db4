"""Set up a provider: those on offer, the choice, its test, and saving it.

The key goes to the keyring or the key file, the rest to the user's settings; both or neither. The
questions on a terminal are in `interview`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from amplifier_app.base import keys
from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.keys import Address, KeyStore, Stored, StoredKey, Where, environment
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import to_stderr
from amplifier_app.plan.documents.scopes import USER, read_settings, settings_path
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.tree import edit
from amplifier_app.plan.tree.entries import entry_key, list_entries
from amplifier_app.plan.tree.nodes import MapNode, plain_data
from amplifier_app.runtime.provider_access import (
    Answered,
    Credential,
    Provider,
    address_field,
    all_providers,
    ask,
    describe,
    describe_address,
    find_access,
    find_credentials,
    find_provider,
)
from amplifier_app.sources.loading import load
from amplifier_app.sources.resolver import resolver_for
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.provider_access import Access, is_same_address
from amplifier_support.provider_order import configured_priority, first_provider

if TYPE_CHECKING:
    from amplifier_app.runtime.observers.observer import Renderer
    from amplifier_core.models import ConfigField, ProviderInfo

MODEL_FIELDS = ("model", "default_model")
NOT_OFFERED = frozenset({"provider-mock"})
"""Providers for tests, which can be chosen by name only."""


class Offer(NamedTuple):
    """A provider that can be set up.

    Attributes:
        provider: Its current configuration.
        info: Its own description.
        ready: Whether it can be used as configured.
        credentials: Where its keys come from.
        access: Its current address.
        stored: The address that the stored key in use was stored for.
    """

    provider: Provider
    info: ProviderInfo
    ready: bool
    credentials: tuple[Credential, ...]
    access: Access
    stored: Address | None = None

    @property
    def secret(self) -> ConfigField | None:
        """The field that takes the key."""
        return next(
            (field for field in self.info.config_fields if field.field_type == "secret"), None
        )

    @property
    def variable(self) -> str | None:
        """The variable the key is stored as; None if the provider needs no key."""
        if self.secret is None and not self.info.credential_env_vars:
            return None
        own = re.sub(r"[^A-Za-z0-9]", "_", f"{self.provider.name}_api_key").upper()
        if self.secret is not None and self.provider.instance_id is not None:
            # The module's variable has the key of another instance.
            return own
        named = self.secret.env_var if self.secret is not None else None
        return named or next(iter(self.info.credential_env_vars), own)

    @property
    def reads_variable(self) -> bool:
        """True if the provider reads the variable itself."""
        read = [*self.info.credential_env_vars, self.secret.env_var if self.secret else None]
        return self.variable in read

    @property
    def needs_key(self) -> bool:
        """True if the provider requires a key and has none."""
        required = self.secret.required if self.secret is not None else True
        return self.variable is not None and not self.ready and not self.credentials and required

    @property
    def model_field(self) -> str:
        """The configuration key of the model."""
        ids = [field.id for field in self.info.config_fields]
        return next((name for name in MODEL_FIELDS if name in ids), MODEL_FIELDS[0])

    @property
    def default_address(self) -> str:
        """The provider's own address; empty if it has no setting for one."""
        field = address_field(self.info)
        return (field.default if field is not None else None) or ""

    def field(self, name: str) -> ConfigField | None:
        """One of its configuration fields."""
        return next((field for field in self.info.config_fields if field.id == name), None)

    @property
    def found(self) -> str:
        """The key or server found for it here, in a few words."""
        words = [str(self.credentials[0])] if self.credentials else []
        if os.environ.get(self.access.address_from):
            words.append(f"{self.access.address_from} is set")
        elif address := describe_address(self.info, self.access):
            words.append(f"at {address}")
        if words:
            return ", ".join(words)
        return "needs no key" if self.variable is None else "no key yet"


class Choice(NamedTuple):
    """The provider to set up.

    Attributes:
        offer: The provider.
        key: A new key; None keeps the current one.
        changes: Changed configuration values; None removes a setting.
    """

    offer: Offer
    key: str | None = None
    changes: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @property
    def provider(self) -> Provider:
        """The provider with the changes applied."""
        config = {**self.offer.provider.config, **self.changes}
        config = {name: value for name, value in config.items() if value is not None}
        if self.key and not self.offer.reads_variable and self.offer.secret is not None:
            config[self.offer.secret.id] = self.key
        return self.offer.provider._replace(config=config)

    @property
    def entry_key(self) -> str:
        """The key of its entry in plans and settings."""
        return self.offer.provider.instance_id or self.offer.provider.module

    @property
    def address(self) -> str:
        """The address of the service; empty if the provider has no setting for it."""
        address = self.changes.get("base_url", self.offer.access.address)
        return address or self.offer.default_address

    @property
    def has_own_address(self) -> bool:
        """True if the service is not the provider's own."""
        return not is_same_address(self.address, self.offer.default_address)

    @property
    def address_of_key(self) -> Address | None:
        """The address to store with the new key; None without a new key, or if the settings contain both."""
        field = address_field(self.offer.info)
        if not self.key or not self.offer.reads_variable or field is None:
            return None
        return Address(field.env_var or "", self.address)

    @property
    def lacks_key(self) -> bool:
        """True if the stored key is for a different address and the user has entered no new key."""
        stored = self.offer.stored
        return (
            self.key is None
            and stored is not None
            and not is_same_address(stored.url, self.address)
        )

    def with_changes(self, changes: dict[str, Any]) -> Choice:
        """The choice with further configuration changes."""
        return self._replace(changes={**self.changes, **changes})


class Given(NamedTuple):
    """Values given as options, which are not asked for.

    Attributes:
        key: A new key.
        model: The model; empty for the provider's default.
        base_url: The address of the API; empty for the provider's own.
    """

    key: str | None = None
    model: str | None = None
    base_url: str | None = None

    def choice(self, offer: Offer) -> Choice:
        """The choice these values make for a provider.

        Raises:
            UsageError: The provider does not take one of the values, or the address is invalid.
        """
        name = offer.provider.name
        changes: dict[str, Any] = {}
        if self.model is not None:
            changes[offer.model_field] = self.model.strip() or None
        if self.base_url is not None:
            address = self.base_url.strip()
            problem = problem_of_address(address) if address else None
            if problem or offer.field("base_url") is None:
                raise UsageError(f"--base-url: {problem or f'{name} does not take an address'}")
            changes["base_url"] = address or None
        if self.key is not None and offer.variable is None:
            raise UsageError(f"--key-stdin: {name} does not take a key")
        return Choice(offer, self.key, changes)


def user_plan(provider: str | None = None) -> ResolvedPlan:
    """The plan of the user's own profile and settings, outside any project.

    Args:
        provider: A provider to include even if its condition is not met.

    Raises:
        ConfigError: The plan cannot be loaded.
    """
    return load(provider=provider, keep_unset=True)


async def offers(plan: ResolvedPlan, stored: dict[str, StoredKey]) -> list[Offer]:
    """The providers on offer: those with a key here, then the others, and last those that need
    no key, such as the demo model."""
    candidates: list[Offer] = []
    for provider in all_providers(plan):
        if provider.module in NOT_OFFERED:
            continue
        try:
            candidates.append(await build_offer(provider, plan, stored))
        # A provider may be third-party code; one that fails is not offered, and `provider list`
        # shows why.
        except Exception:
            continue
    return sorted(candidates, key=lambda offer: (offer.variable is None, not offer.ready))


async def build_offer(
    provider: Provider, plan: ResolvedPlan, stored: dict[str, StoredKey]
) -> Offer:
    """One provider on offer.

    Raises:
        ConfigError: The provider is unavailable.
        Exception: Any error that a third-party module raises.
    """
    if provider.left_out is not None:
        provider = find_provider(user_plan(provider.name), provider.name)
    info, ready = await describe(provider, resolver_for(plan))
    credentials = tuple(find_credentials(info, provider, stored))
    offer = Offer(provider, info, ready, credentials, find_access(info, provider))
    variable = offer.variable or ""
    key = stored.get(variable)
    is_used = key is not None and key.overriding(variable, os.environ) is None
    if key is None or not is_used:
        return offer
    # The provider's own address, if an earlier version stored the key.
    address = key.address or Address("", offer.default_address)
    return offer._replace(stored=address if address.url else None)


async def try_out(choice: Choice, timeout: float, renderer: Renderer | None = None) -> Answered:
    """Test the provider, as it would be configured, with a one-word request.

    Raises:
        LLMError: The request failed.
        AppError: The provider cannot be mounted.
    """
    use_key(choice)
    plan = user_plan()
    provider = choice.offer.provider
    if provider.origin is not None:
        # Load it again: its configuration may name the variable of the key.
        provider = find_provider(user_plan(provider.name), provider.name)
    candidate = choice._replace(offer=choice.offer._replace(provider=provider)).provider
    return await ask(candidate, resolver_for(plan), timeout=timeout, renderer=renderer)


def use_key(choice: Choice) -> None:
    """Make a new key available to modules mounted in this process from now on."""
    if choice.key and choice.offer.variable:
        keys.use_key(choice.offer.variable, choice.key, choice.address_of_key)


def problem_of_address(text: str) -> str | None:
    """Why a text is not a URL of an API; None if it is one."""
    try:
        parts = urlsplit(text)
        good = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:
        good = False
    if good and not any(character.isspace() for character in text):
        return None
    return f"{text} is not a URL (expected http:// or https://)"


_FIRST = 10
"""The priority of the provider set up last; the default is 100."""


class Saved(NamedTuple):
    """The stored setup.

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


def _build_changes(choice: Choice) -> dict[str, Any]:
    """The changes to the provider's entry in the settings: address → value.

    Other providers' entries are never changed: the provider gets a priority ahead of theirs. A
    condition that would skip the chosen provider is removed.
    """
    # Including those that conditions skip.
    entries = _listed(user_plan().merged.document, "providers")
    key = choice.entry_key
    entry = entries.get(key, {})
    config: dict[str, Any] = entry.get("config") or {}
    changes: dict[str, Any] = {}
    if not _holds(entry.get("when") or {}, choice):
        changes["when"] = None
    settings = dict(choice.changes)
    offer = choice.offer
    if choice.key and not offer.reads_variable and offer.secret is not None:
        settings[offer.secret.id] = f"${{{offer.variable}}}"
    if "base_url" in settings:
        settings["base_url"] = _address_setting(choice, config)
    for name, value in settings.items():
        if value != config.get(name):
            changes[f"config.{name}"] = value
    first = first_provider(
        entries.items(),
        None,
        name=lambda item: item[0],
        priority=lambda item: configured_priority(item[1].get("config")),
    )
    if first is None or first[0] != key:
        others = [
            configured_priority(one.get("config")) for name, one in entries.items() if name != key
        ]
        changes["config.priority"] = min([_FIRST, *(other - 1 for other in others)])
    return changes


def _address_setting(choice: Choice, config: dict[str, Any]) -> str | None:
    """The address to write to the settings; None to leave it to the address stored with the key."""
    stored = choice.address_of_key or choice.offer.stored
    if stored is None:
        return choice.changes["base_url"]
    own = _own_entries("providers").get(choice.entry_key, {}).get("config") or {}
    is_in_profile = "base_url" in config and "base_url" not in own
    is_stored = is_same_address(stored.url, choice.address)
    return None if is_stored and not is_in_profile else choice.address


def _holds(when: dict[str, Any], choice: Choice) -> bool:
    """Return True if a condition is met once the key is stored."""
    if when.get("no_other"):
        return False
    named = when.get("env") or []
    names = [named] if isinstance(named, str) else list(named)
    stored = choice.offer.variable if choice.key else None
    return not names or stored in names or any(environment().get(name) for name in names)


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
    changes = _build_changes(choice)
    variable = choice.offer.variable if choice.key is not None else None
    store = KeyStore()
    before = _before(store, variable) if variable is not None else None
    stored: Stored | None = None
    try:
        if variable is not None and choice.key is not None:
            stored = store.store(variable, choice.key, where, address=choice.address_of_key)
        _write(file, choice, changes)
    except BaseException:
        if variable is not None:
            _restore(store, variable, before)
        raise
    first = user_plan().default_provider == choice.entry_key
    lines = tuple(_describe(name, value) for name, value in changes.items())
    return Saved(file, lines, stored, first)


def _write(file: Path, choice: Choice, changes: dict[str, Any]) -> None:
    if not changes:
        return
    provider, key = choice.provider, choice.entry_key
    gone = [name for name, value in changes.items() if value is None and name != "when"]
    kept = {name: value for name, value in changes.items() if name not in gone}
    if key in _own_entries("providers"):
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


def _own_entries(section: str) -> dict[str, dict[str, Any]]:
    """The entries of a section of the user's settings, by key."""
    for settings in read_settings().files:
        return _listed(settings.tree, section)
    return {}


_APPROVAL = "hooks-approval"


def has_own_mode() -> bool:
    """Return True if the user's settings set the mode of sessions."""
    entry = _own_entries("hooks").get(_APPROVAL) or {}
    return "mode" in (entry.get("config") or {})


@changing_settings()
def save_mode(mode: str) -> Path:
    """Set the mode of sessions in the user's settings; returns the file.

    Raises:
        ConfigError: The settings cannot be read, changed or written.
    """
    file = settings_path(USER)
    assert file is not None
    if _APPROVAL in _own_entries("hooks"):
        edit.set_value(file, ["hooks", _APPROVAL, "config", "mode"], mode)
    else:
        edit.append_value(file, ["hooks"], {"module": _APPROVAL, "config": {"mode": mode}})
    return file


def _listed(document: MapNode, section: str) -> dict[str, dict[str, Any]]:
    """The entries of a section by key."""
    entries = list_entries(document, section)
    return {key: plain_data(entry) for entry in entries if (key := entry_key(entry))}


def _describe(name: str, value: Any) -> str:
    setting = name.removeprefix("config.")
    if setting == "when":
        return "enabled"
    if setting == "priority":
        return "used first"
    return f"{setting} {value}" if value is not None else f"{setting} reset to the default"


def _before(store: KeyStore, variable: str) -> tuple[str | None, StoredKey] | None:
    """The key that a new one replaces; its value is None if the keyring does not reveal it."""
    stored = store.names().get(variable)
    if stored is None:
        return None
    try:
        return store.read(variable), stored
    except ConfigError:
        return None, stored


def _restore(store: KeyStore, variable: str, before: tuple[str | None, StoredKey] | None) -> None:
    if before is None:
        store.forget(variable)
        return
    value, stored = before
    if value is not None:
        store.store(variable, value, stored.where, address=stored.address)


_CODE = (
    *(".c", ".cpp", ".cs", ".go", ".java", ".js", ".kt"),
    *(".php", ".py", ".rb", ".rs", ".swift", ".ts"),
)
_TESTS = ("test", "tests", "spec", "__tests__")
_SKIPPED = frozenset(("node_modules", "vendor", "target", "dist", "build", "venv", "__pycache__"))
_MAX_ENTRIES = 2000
_DEPTH = 3


def suggestions(folder: Path) -> list[str]:
    """Three prompts that make sense for the files of a folder.

    Only names are read, and of a large tree only a part.
    """
    files = list(_files(folder))
    code = next((file for file in files if _is_code(file)), None)
    if not files:
        return [
            "Write a Python script that lists the largest files of a folder.",
            "Explain how to set up a Python project with tests.",
            "What can you do here?",
        ]
    first = "What does this project do, and where should I start reading?"
    if code is None:
        second = "Summarize the files in this folder."
    elif any(_is_test(file) for file in files):
        second = f"Which tests cover {code}?"
    else:
        second = f"Explain {code} step by step."
    if (folder / ".git").exists():
        third = "Review my latest changes."
    else:
        third = "Which files here look unfinished, and why?"
    return [first, second, third]


def _files(folder: Path) -> Iterator[Path]:
    """Relative paths of visible files, those of each folder before those below it."""
    left = _MAX_ENTRIES
    for path, folders, files in os.walk(folder):
        here = Path(path).relative_to(folder)
        visible = sorted(one for one in folders if one not in _SKIPPED and one[0] != ".")
        folders[:] = visible if len(here.parts) < _DEPTH else []
        for name in sorted(files)[:left]:
            if name[0] != "." and name.isprintable():
                yield here / name
        left -= len(files) + len(folders)
        if left <= 0:
            return


def _is_code(file: Path) -> bool:
    return file.suffix in _CODE and not file.stem.startswith("_") and not _is_test(file)


def _is_test(file: Path) -> bool:
    in_tests = any(part in _TESTS for part in file.parts[:-1])
    return in_tests or file.stem.startswith("test_") or file.stem.endswith(("_test", ".test"))


def report_saved(choice: Choice, saved: Saved) -> None:
    """Report what was saved, and where."""
    name = choice.provider.name
    if saved.stored is not None:
        where = "the keyring" if saved.stored.where == "keyring" else str(KeyStore().file)
        note = f" ({saved.stored.note})" if saved.stored.note else ""
        address, access = choice.address_of_key, choice.offer.access
        target = f" for {address.url}" if address is not None else ""
        to_stderr(f"amplifier: stored the key of {name}{target} in {where}{note}")
        variable = choice.offer.variable or ""
        if any(credential.where == "environment" for credential in choice.offer.credentials):
            to_stderr(
                f"amplifier: warning: {variable} is set and takes precedence; unset it to use the stored key"
            )
        if address is not None and choice.offer.stored is None and access.address is not None:
            is_set = access.address_from == address.variable
            if is_set and not is_same_address(access.address, address.url):
                to_stderr(
                    f"amplifier: warning: {address.variable} is set to another address; unset it to use the "
                    "stored key"
                )
    if saved.changed:
        to_stderr(f"amplifier: {saved.file}: {name}: {', '.join(saved.changed)}")
    if not saved.changed and saved.stored is None:
        to_stderr("Nothing to change: it is already set up this way.")
    if saved.asked_first:
        to_stderr(f"amplifier: {name} is ready")
    else:
        hint = f"amplifier run --provider {name}"
        to_stderr(
            f"amplifier: warning: another provider is used by default; to use this one: {hint}"
        )


def show_suggestions(*, as_commands: bool) -> None:
    """Show three prompts to try here, or the commands that send them."""
    to_stderr("\nThree things to try here:")
    for prompt in suggestions(Path(os.getcwd())):
        to_stderr(for_terminal(f'  amplifier run "{prompt}"' if as_commands else f"  {prompt}"))
    to_stderr("")
