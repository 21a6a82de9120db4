"""Capabilities the app registers on every coordinator or shares with a sub-session, and what it reads from providers."""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from amplifier_app.base import paths
from amplifier_app.base.errors import AppError
from amplifier_app.base.keys import Filled, fill_environment
from amplifier_app.base.redact import treat_keys_as_secret
from amplifier_app.plan.source_spec import FolderSource, SourceSyntaxError, parse_source
from amplifier_app.sources.loading import Fetching
from amplifier_app.trust import check_programs, trusted_dir
from amplifier_core.loader import LoadedModule, ModuleLoader, MountFunction, find_kind
from amplifier_support.environment import stored_addresses, withholding
from amplifier_support.fields import to_mapping
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.project_folders import project_folders
from amplifier_support.provider_access import is_misplaced
from amplifier_support.provider_order import first_mounted
from amplifier_support.session_capabilities import (
    ACCEPTED_TOOLS,
    BACKUPS,
    BUDGET,
    CACHE_DIR,
    CONFIG_DIR,
    DEFERRAL,
    DEPTH,
    EDITOR_FILES,
    MENTIONS,
    MODE,
    OFFLINE,
    PACE,
    PRICES_FILE,
    REDACT_EVENT,
    REMEMBERED_APPROVALS,
    REPLICATE,
    SANDBOX,
    SECRET_VARIABLES,
    SPENT,
    TRUSTED_DIR,
    TRUSTED_PROGRAMS,
    WORKING_DIR,
    Capability,
)
from amplifier_support.text import without_login
from amplifier_support.working_folder import working_folder

if TYPE_CHECKING:
    from amplifier_app.sources.resolver import AppModuleSourceResolver
    from amplifier_core.models import ProviderInfo

T = TypeVar("T")

logger = logging.getLogger(__name__)


def register_capabilities(coordinator: Any, sources: AppModuleSourceResolver) -> None:
    """Register the capabilities available to every module."""
    WORKING_DIR.register(coordinator, working_folder())
    CONFIG_DIR.register(coordinator, str(paths.config_dir()))
    CACHE_DIR.register(coordinator, str(paths.cache_dir()))
    PRICES_FILE.register(coordinator, str(paths.prices_file()))
    OFFLINE.register(coordinator, sources.offline)


def register_trusted_dir(coordinator: Any, reads_project: bool | None) -> None:
    """Register the folder whose instruction files may be read, if there is one, and a check of its programs.

    Args:
        coordinator: Where to register it.
        reads_project: See `amplifier_app.plan.overrides.Overrides`.

    Raises:
        ConfigError: See `amplifier_app.trust.trusted_dir`.
    """
    if reads_project is False:
        return
    working_dir = working_folder()
    if reads_project:
        folder = next(iter(project_folders(working_dir)), None)
    else:
        folder = trusted_dir(working_dir)
    if folder is not None:
        TRUSTED_DIR.register(coordinator, folder)
        root = Path(folder)
        check = (lambda: None) if reads_project else (lambda: check_programs(root))
        TRUSTED_PROGRAMS.register(coordinator, check)


def set_stored_keys(coordinator: Any) -> Filled:
    """Set the stored keys as environment variables, and list them for modules that hide them.

    Call this after the modules are fetched: fetching needs no keys.

    Raises:
        ConfigError: See `amplifier_app.base.keys.KeyStore.names`.
    """
    filled = fill_environment()
    treat_keys_as_secret(coordinator)
    SECRET_VARIABLES.register(coordinator, filled.secret)
    return filled


_OWN_PACKAGES = ("amplifier_modules", "amplifier_extras")


class GuardedLoader(ModuleLoader):
    """Loads modules, and mounts third-party ones without the keys that were stored for a different address.

    Our modules choose themselves, and say why. Others read the environment, whatever their `base_url` is.
    """

    async def load(
        self, module_id: str, config: dict[str, Any] | None = None, *args: Any, **kwargs: Any
    ) -> MountFunction:
        mount = await super().load(module_id, config, *args, **kwargs)
        loaded: LoadedModule | None = getattr(mount, "__amplifier_module__", None)
        address = (config or {}).get("base_url")
        package = "" if loaded is None or loaded.package is None else loaded.package.__name__
        if not isinstance(address, str) or package.partition(".")[0] in _OWN_PACKAGES:
            return mount

        async def guarded(coordinator: Any) -> Any:
            stored = stored_addresses()
            names = [name for name in stored if is_misplaced(name, address, stored)]
            before = len(coordinator.get("providers"))
            try:
                with withholding(names):
                    return await mount(coordinator)
            finally:
                if (
                    names
                    and find_kind(module_id) == "provider"
                    and len(coordinator.get("providers")) == before
                ):
                    text = "%s is not given the stored %s: base_url (%s) is another address; set api_key: ${%s} next to it"
                    listed = " and ".join(names)
                    logger.warning(text, module_id, listed, without_login(address), names[0])

        vars(guarded).update(vars(mount))
        return guarded


def first_provider(session: Any) -> tuple[str, Any]:
    """Return the provider used first."""
    providers: dict[str, Any] = session.coordinator.get("providers")
    orchestrator = to_mapping(session.config.get("session")).get("orchestrator")
    config = orchestrator.get("config") or {} if isinstance(orchestrator, dict) else {}
    default = config.get("default_provider")
    name = first_mounted(providers, default)
    assert name is not None, "a session without providers does not open"
    return name, providers[name]


def read_info(provider: Any, read: Callable[[ProviderInfo], T], otherwise: T) -> T:
    """Return what a provider says about itself; `otherwise` if it cannot be read."""
    try:
        return read(provider.get_info())
    # A provider may raise anything; nothing depends on what it says.
    except Exception:
        return otherwise


def read_capabilities(provider: Any) -> Collection[str]:
    """Return what a provider says its models can do; empty if it says nothing."""
    return read_info(provider, lambda info: set(info.capabilities), set[str]())


def credential_variable(session: Any) -> str | None:
    """Return the environment variable that made the first provider available, if one did."""
    names = read_info(first_provider(session)[1], lambda info: info.credential_env_vars, [])
    return next((name for name in names if os.environ.get(name)), None)


class Namespace(NamedTuple):
    """The folders of a namespace, as published hooks expect them of a bundle.

    Attributes:
        name: Its name.
        base_path: The folder that is searched first, without links.
        source_base_paths: All of them, in search order.
    """

    name: str
    base_path: Path
    source_base_paths: tuple[Path, ...]


class Mentions:
    """The capability `mention_resolver` (`amplifier_core/contracts/capabilities.md`): the file of `@NAME:path`.

    NAME is one of the plan's namespaces.

    Args:
        bundles: The namespaces by name.
        working_dir: What paths without a namespace are relative to, absolute and without links.

    Attributes:
        bundles: The namespaces by name.
    """

    def __init__(self, bundles: Mapping[str, Namespace], working_dir: str) -> None:
        self.bundles = dict(bundles)
        self._working_dir = Path(working_dir)

    def resolve(self, mention: str) -> Path | None:
        """Return the file or folder of `@NAME:path` or `@path`; None if it does not exist, or is
        outside the namespace's folders or the working directory."""
        name, colon, below = mention.removeprefix("@").partition(":")
        if not colon:
            return _inside(self._working_dir, name)
        namespace = self.bundles.get(name)
        folders = namespace.source_base_paths if namespace is not None else ()
        return next((path for folder in folders if (path := _inside(folder, below))), None)


def _inside(folder: Path, below: str) -> Path | None:
    # With links as they are written: rules for paths may name either end.
    path = Path(os.path.normpath(folder / below))
    if not os.path.exists(path):  # Unlike that of Path, also False for names that are too long.
        return None
    return path if Path(os.path.realpath(path)).is_relative_to(folder) else None


async def register_mentions(
    coordinator: Any, sources: Mapping[str, Sequence[str]], offline: bool
) -> list[str]:
    """Register the capability for the namespaces of a plan, fetching those not in the cache.

    Args:
        coordinator: Where to register it.
        sources: The sources of each namespace.
        offline: Use only the cache.

    Returns:
        Why folders are not available, one sentence each.
    """
    failures: list[str] = []
    namespaces: dict[str, Namespace] = {}
    for name, texts in sources.items():
        folders: list[Path] = []
        for text in texts:
            try:
                folder = await _folder(text, offline)
            except (AppError, SourceSyntaxError) as error:
                failures.append(f"files of @{name} cannot be read: {error.message}")
                continue
            # Links are resolved now: tools could replace a folder in the working directory.
            folders.append(Path(os.path.realpath(folder)))
            if not os.path.isdir(folder):
                failures.append(f"files of @{name} cannot be read: {folder} is not a folder")
        if folders:
            namespaces[name] = Namespace(name, folders[0], tuple(folders))
    MENTIONS.register(coordinator, Mentions(namespaces, working_folder()))
    return failures


async def _folder(text: str, offline: bool) -> Path:
    source = parse_source(text, Path.cwd())
    if isinstance(source, FolderSource):
        return source.path
    fetcher = Fetching(offline=offline).open(None)
    return (await asyncio.to_thread(fetcher.fetch, text, Path.cwd() / "plan")).path


# Sub-sessions

MAX_DEPTH = 5
"""Maximum depth of sub-agents that delegate to sub-agents, regardless of what a tool allows."""

_SHARED: tuple[Capability[Any], ...] = (
    *(BUDGET, SANDBOX, PACE, REPLICATE),
    *(SECRET_VARIABLES, REDACT_EVENT, REMEMBERED_APPROVALS, MODE),
    *(BACKUPS, DEFERRAL, MENTIONS, ACCEPTED_TOOLS, EDITOR_FILES),
)
"""Capabilities a sub-session inherits; its own modules may replace them."""


class Delegation(NamedTuple):
    """The link from a sub-session to its parent.

    Attributes:
        parent_id: The session that delegated the task.
        agent: The agent of the plan that runs it.
        depth: The number of sessions above it.
        coordinator: The parent's, while it waits for the sub-session; None when the user resumes
            the sub-session directly.
        spent: Budget used before, if it is not saved with the sub-session.
    """

    parent_id: str
    agent: str
    depth: int
    coordinator: Any = None
    spent: Any = None

    @classmethod
    def from_metadata(cls, metadata: Mapping[str, Any]) -> Delegation | None:
        """Return the delegation of a saved session; None if it is not a sub-session."""
        parent, agent, depth = (metadata.get(key) for key in ("parent", "agent", "depth"))
        if not isinstance(parent, str) or not isinstance(agent, str):
            return None
        return cls(parent, agent, depth if isinstance(depth, int) else 1)

    def as_metadata(self) -> dict[str, Any]:
        """Return the metadata to save with the session."""
        return {"parent": self.parent_id, "agent": self.agent, "depth": self.depth}


def share(delegation: Delegation | None, coordinator: Any) -> None:
    """Register the parent's capabilities on a coordinator, before its modules are mounted."""
    DEPTH.register(coordinator, 0 if delegation is None else delegation.depth)
    if delegation is None or delegation.coordinator is None:
        return
    for capability in _SHARED:
        value = capability.of(delegation.coordinator)
        if value is not None:
            capability.register(coordinator, value)
    if delegation.spent is not None:
        SPENT.register(coordinator, delegation.spent)
