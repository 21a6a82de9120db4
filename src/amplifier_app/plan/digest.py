"""The digest of a plan: equal for runs that were configured alike, on any machine."""

from __future__ import annotations

import hashlib
import json
import os
from typing import Any

from amplifier_app.base import paths
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.tree.nodes import MapNode, plain_data

_WITHOUT_EFFECT = ("name", "description")


def plan_digest(tree: MapNode) -> str:
    """``sha256:…`` of the effective plan.

    Secrets are masked. Paths differ between machines: of a source that is a path only the last part
    is used, the folder or archive of a namespace is left out, and the cache folder becomes a
    placeholder.
    """
    data: dict[str, Any] = plain_data(masked_tree(tree))
    effective = {key: value for key, value in data.items() if key not in _WITHOUT_EFFECT}
    if "namespaces" in effective:
        effective["namespaces"] = {
            name: [_without_path(source) for source in sources]
            for name, sources in effective["namespaces"].items()
        }
    portable = _portable(effective, "", str(paths.cache_dir()))
    text = json.dumps(portable, sort_keys=True, ensure_ascii=True, separators=(",", ":"))
    return f"sha256:{hashlib.sha256(text.encode()).hexdigest()}"


def _without_path(source: str) -> str:
    """The source of a folder or archive without its path; the hash of an archive stays."""
    path, mark, rest = source.partition("#")
    return f"<path>{mark}{rest}" if os.path.isabs(path) else source


def _portable(value: Any, key: str, cache: str) -> Any:
    if isinstance(value, dict):
        return {name: _portable(one, name, cache) for name, one in value.items()}
    if isinstance(value, list):
        return [_portable(one, key, cache) for one in value]
    if not isinstance(value, str):
        return value
    if key in ("source", "requires") and os.path.isabs(value):
        return f"<path>/{os.path.basename(value.rstrip(os.sep))}"
    return value.replace(cache, "<cache>") if cache in value else value
