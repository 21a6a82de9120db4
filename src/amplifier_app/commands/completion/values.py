"""Values for the command line. Nothing here mounts a module, uses the network, or runs code of a
project."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from contextlib import suppress
from importlib import import_module
from importlib.machinery import PathFinder
from pathlib import Path
from typing import Any

from amplifier_app import __version__, trust
from amplifier_app.base import paths
from amplifier_app.base.errors import AppError
from amplifier_app.base.installed import bundled_modules
from amplifier_app.commands.docs.pages import pages
from amplifier_app.plan.documents.profile_paths import profile_names
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS
from amplifier_app.plan.tree.nodes import plain_data
from amplifier_app.sources.loading import Fetching, load
from amplifier_support.atomic_write import write_atomically

_PROVIDER = "provider-"
_MOST_SESSIONS = 200


def profiles() -> list[str]:
    """The names of all profiles."""
    return profile_names(trust.folder_if_trusted(quiet=True))


def providers() -> list[str]:
    """The bundled providers, and those of the plan."""
    names = [
        name.removeprefix(_PROVIDER) for name in bundled_modules() if name.startswith(_PROVIDER)
    ]
    plan = _plan(None)
    entries = plan.get("providers") or []
    own = [entry.get("instance_id") or entry.get("module", "") for entry in entries]
    return list(dict.fromkeys([*names, *(name.removeprefix(_PROVIDER) for name in own)]))


def models(provider: str | None) -> list[str]:
    """The models in the catalogues of the bundled providers.

    Args:
        provider: The provider to use; None for any.
    """
    wanted = None if provider is None else _PROVIDER + provider.removeprefix(_PROVIDER)
    names = [
        name for name in bundled_modules() if name.startswith(_PROVIDER) and wanted in (None, name)
    ]
    return [model for name in names for model in _catalogue(name)]


def modules() -> list[str]:
    """The bundled modules, and those of the plan."""
    plan = _plan(None)
    own = [entry["module"] for section in ENTRY_SECTIONS for entry in plan.get(section) or []]
    return sorted({*bundled_modules(), *own})


def topics() -> list[str]:
    """The topics of the documentation."""
    return [page.topic for page in pages()]


def sessions() -> list[str]:
    """The ids of the newest saved sessions."""
    try:
        names = os.listdir(paths.sessions_dir())
    except OSError:
        return []
    return sorted((name for name in names if not name.startswith(".")), reverse=True)[
        :_MOST_SESSIONS
    ]


def addresses(begun: str, profile: str | None = None) -> list[str]:
    """The addresses of the values in the plan.

    Args:
        begun: The beginning of one. If it names a bundled module, the keys of its config are included.
        profile: The profile; by default that of a run here.
    """
    return list(_below(_plan(profile), "", begun))


def _below(data: Any, at: str, begun: str) -> Iterator[str]:
    if isinstance(data, dict) and data:
        for key, value in data.items():
            yield from _below(value, f"{at}.{key}" if at else str(key), begun)
    elif isinstance(data, list) and at in ENTRY_SECTIONS:
        for entry in data:
            fields = entry if isinstance(entry, dict) else {"module": entry}
            module = str(fields.get("module"))
            place = f"{at}.{fields.get('instance_id') or module}"
            own = {key: value for key, value in fields.items() if key != "module"}
            yield from _below({"config": {}, **own}, place, begun)
            if begun.startswith(f"{place}."):
                yield from (f"{place}.config.{key}" for key in _config_keys(module))
    elif at:
        yield at


def _config_keys(module_id: str) -> list[str]:
    """The keys of a bundled module's config; kept in the cache, because its model takes long to load."""
    module = bundled_modules().get(module_id)
    if module is None:
        return []
    cache = paths.cache_dir() / "completion" / f"{module_id}.json"
    version = [__version__, *(file.stat().st_mtime_ns for file in _files(module_id, "config.py"))]
    try:
        kept = json.loads(cache.read_text("utf-8"))
        if kept["version"] == version:
            return [str(key) for key in kept["keys"]]
    except (OSError, ValueError, LookupError, TypeError):
        pass
    package = import_module(module.entry_point.partition(":")[0])
    keys = list(package.config_schema()["properties"])
    # If it cannot be cached, it is read again next time.
    with suppress(OSError):
        cache.parent.mkdir(parents=True, exist_ok=True)
        write_atomically(
            cache, json.dumps({"version": version, "keys": keys}).encode(), durable=False
        )
    return keys


def _plan(profile: str | None) -> dict[str, Any]:
    """The plan of a run here, as far as it is known without the network; empty if it is invalid."""
    try:
        plan = load(
            profile=profile,
            project=trust.folder_if_trusted(quiet=True),
            keep_unset=True,
            fetching=Fetching(offline=True),
        )
        return plain_data(plan.tree)
    except AppError:
        return {}


def _catalogue(module_id: str) -> list[str]:
    for path in _files(module_id, "models.json", "catalogue.json"):
        return [model["id"] for model in json.loads(path.read_text("utf-8"))["models"]]
    return []


def _files(module_id: str, *names: str) -> Iterator[Path]:
    """The files of a bundled module with one of these names, without importing it."""
    package = bundled_modules()[module_id].entry_point.partition(":")[0]
    parent, _, folder_name = package.rpartition(".")
    spec = PathFinder.find_spec(parent)
    for folder in (spec.submodule_search_locations or ()) if spec else ():
        found = (Path(folder, folder_name, name) for name in names)
        yield from (path for path in found if path.is_file())
