"""A plan ready to run: which modules to mount, their configuration, and each value's origin.

read_plan / read_profile    files → merged tree       (structure: checked when loading)
apply_overrides             --model --provider --set
ResolvedPlan                conditions and variables  (environment: checked on first access)
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_app.base import keys, paths
from amplifier_app.base.errors import Location
from amplifier_app.plan import masking, overrides
from amplifier_app.plan.documents import plan_files
from amplifier_app.plan.documents.scopes import Override
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.resolution import Dropped, Resolution, Unset, resolve
from amplifier_app.plan.scorers import is_check
from amplifier_app.plan.traffic import NO_TRAFFIC
from amplifier_app.plan.tree.entries import ENTRY_SECTIONS, entry_key, list_entries, mounted_entries
from amplifier_app.plan.tree.nodes import NOWHERE, MapNode, plain_data, read_text, with_items
from amplifier_app.plan.tree.yaml_writer import write_yaml
from amplifier_support.redaction import configured_secrets

if TYPE_CHECKING:
    from amplifier_app.plan.documents.plugins import Plugin
    from amplifier_app.plan.requirements import PlanRequirement

_WITHOUT_EFFECT = ("name", "description", "scores")


def plan_digest(tree: MapNode) -> str:
    """``sha256:…`` of the effective plan.

    Secrets are masked. Paths differ between machines: of a source that is a path only the last part
    is used, the folder or archive of a namespace is left out, and the cache folder becomes a
    placeholder.
    """
    data: dict[str, Any] = plain_data(masked_tree(tree))
    effective = {key: value for key, value in data.items() if key not in _WITHOUT_EFFECT}
    if checks := [score for score in data.get("scores") or () if is_check(score)]:
        effective["scores"] = checks
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
        return {name: _portable(item, name, cache) for name, item in value.items()}
    if isinstance(value, list):
        return [_portable(item, key, cache) for item in value]
    if not isinstance(value, str):
        return value
    if key in ("source", "requires") and os.path.isabs(value):
        return f"<path>/{os.path.basename(value.rstrip(os.sep))}"
    return value.replace(cache, "<cache>") if cache in value else value


class ResolvedPlan:
    """One plan with overrides, conditions and variables applied.

    Loading has checked its structure. Problems that depend on the environment (an unset variable,
    a missing provider) are raised by `resolve` or by the first member that needs the value, so that
    overrides can still fix them.

    Args:
        merged: The plan as written.
        chosen: The overrides of `--provider`, `--model` and `--set`.
        environ: The variables, also for conditions; by default the environment of the process and
            the stored keys at the time of reading.
        keep_unset: Whether strings with unset variables are kept as written, see `unset`;
            otherwise they are problems.
        lenient: Whether to ignore problems: variables and sources that have one are kept as
            written, everything else is left out.
    """

    def __init__(
        self,
        merged: plan_files.MergedPlan,
        chosen: overrides.Overrides = overrides.NONE,
        environ: Mapping[str, str] | None = None,
        *,
        keep_unset: bool = False,
        lenient: bool = False,
    ) -> None:
        self.merged = merged
        self.chosen = chosen
        self.environ = environ
        self.keep_unset = keep_unset
        self.lenient = lenient
        self._has_own_tree = False

    @property
    def name(self) -> str:
        """The plan's `name:`, else the profile's name or the file's stem."""
        return self.merged.name

    def named(self, name: str) -> ResolvedPlan:
        """The same plan with another name."""
        return self.copy(merged=self.merged._replace(name=name))

    def copy(self, **changes: Any) -> ResolvedPlan:
        """The plan with other arguments, such as `chosen`."""
        fields = ("merged", "chosen", "environ", "keep_unset", "lenient")
        arguments = {name: getattr(self, name) for name in fields}
        return ResolvedPlan(**(arguments | changes))

    def resolve(self) -> ResolvedPlan:
        """The plan itself, after checking everything.

        Raises:
            PlanError: Unset variables, overrides of missing entries, invalid sources.
        """
        _ = self._resolution
        return self

    def with_tree(self, tree: MapNode) -> ResolvedPlan:
        """The plan with another tree whose values come from the same files."""
        other = self.copy()
        other._resolution = self._resolution._replace(tree=tree)
        other._has_own_tree = True
        return other

    @property
    def data(self) -> dict[str, Any]:
        """The plan as plain data: `name`, `instruction`, `session`, `providers` …

        Sources that are paths are absolute.
        """
        return plain_data(self.tree)

    @property
    def tree(self) -> MapNode:
        """The plan with the location of every value."""
        return self._resolution.tree

    @property
    def dropped(self) -> list[Dropped]:
        """The entries whose conditions are not met."""
        return list(self._resolution.dropped)

    @property
    def notes(self) -> list[str]:
        """Sentences about skipped entries and settings without effect, for the user."""
        # One that is mounted only without others is not missed.
        skipped = [entry.note for entry in self.dropped if not entry.is_fallback]
        return [*skipped, *self._resolution.notes, *self.warnings]

    @property
    def warnings(self) -> list[str]:
        """The notes about possible mistakes."""
        return [*self.merged.warnings, *self._resolution.warnings]

    @property
    def unset(self) -> list[Unset]:
        """The unset variables, if the plan was loaded with `keep_unset`."""
        return list(self._resolution.unset)

    @property
    def sources(self) -> Mapping[str, Override]:
        """The sources that settings set for modules, by module id; they override the plan's."""
        return self._resolution.sources

    @property
    def display(self) -> Mapping[str, Any]:
        """The settings under `display`."""
        return self.merged.display

    @property
    def requires(self) -> Mapping[str, tuple[PlanRequirement, ...]]:
        """The requirements that entries add to their modules, by module id."""
        return self._resolution.requires

    @property
    def project(self) -> Path | None:
        """The folder of the trusted project in use, if any."""
        return self.merged.project

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that was read for it, absolute.

        Settings, the plan, what it extends, files of agents and what instructions include.
        """
        return self.merged.files

    @property
    def plugins(self) -> Mapping[str, Plugin]:
        """The plugins by name."""
        return self.merged.plugins

    @property
    def namespaces(self) -> dict[str, list[str]]:
        """The sources of the folders of each namespace, absolute."""
        node = self.tree.items.get("namespaces")
        return {} if node is None else plain_data(node)

    @property
    def instruction(self) -> str | None:
        """The system prompt, if the plan has one."""
        return read_text(self.tree.items.get("instruction"))

    @property
    def default_provider(self) -> str | None:
        """The key of the provider that is used first, if there is any."""
        entry = overrides.first_provider(self.tree, list_entries(self.tree, "providers"))
        return entry_key(entry) if entry is not None else None

    @property
    def chosen_provider(self) -> str | None:
        """The key of the provider that the user chose, by its name or a model for it; no other may
        answer in its place."""
        if self.chosen.provider is not None:
            # None for an agent with providers of its own, or a replay.
            entries = list_entries(self.tree, "providers")
            entry = overrides.named_provider(entries, self.chosen.provider)
            return None if entry is None else entry_key(entry)
        return self.default_provider if self.chosen.model is not None else None

    @cached_property
    def digest(self) -> str:
        """See `amplifier_app.plan.model`."""
        return plan_digest(self.tree)

    def origin(self, path: str | Sequence[str | int]) -> Location:
        """Return the location of a value, such as `tools.tool-bash.config.timeout`.

        `sources.tool-bash` is the location where settings override the module's source.

        Raises:
            ConfigError: The plan has no such value.
        """
        tree = self.tree
        if self.merged.sources:
            sources = MapNode(self.merged.sources, NOWHERE)
            tree = with_items(tree, {"sources": sources, **tree.items})
        return overrides.look_up(tree, path).at

    def mount_plan(self) -> dict[str, Any]:
        """The plan for `AmplifierSession`, freshly built: `session`, lists of modules, `agents`,
        `approvals`."""
        data = plain_data(self.tree)
        plan: dict[str, Any] = {"session": data["session"]}
        for section in ENTRY_SECTIONS:
            plan[section] = data.get(section, [])
        plan["providers"] = [*plan["providers"], *self.chosen.traffic.entries()]
        for _, _, module in mounted_entries(plan):
            module.setdefault("config", {})
        for key in ("agents", "approvals"):
            if key in data:
                plan[key] = data[key]
        return plan

    def to_yaml(self, *, masked: bool = True) -> str:
        """The plan as YAML that can be loaded again, by default with secrets masked."""
        return self._masked if masked else write_yaml(plain_data(masking.open_tree(self.tree)))

    # Each row of a batch saves it.
    @cached_property
    def _masked(self) -> str:
        secrets = configured_secrets(self.data.get("providers"))
        return write_yaml(
            masking.without_secrets(plain_data(masking.masked_tree(self.tree)), secrets)
        )

    def without_replay(self) -> ResolvedPlan:
        """The plan with its own providers in place of those that play a recording.

        Their keys may be missing: conditions and unset variables are kept as written.
        """
        # The plan of an agent has a tree that was not resolved here; it is never loaded again.
        if not self.chosen.traffic.replaces_providers or self._has_own_tree:
            return self
        chosen = self.chosen._replace(traffic=NO_TRAFFIC, keep_conditions=True)
        return self.copy(chosen=chosen, lenient=True)

    @cached_property
    def _resolution(self) -> Resolution:
        environ = keys.environment() if self.environ is None else self.environ
        return resolve(
            self.merged, self.chosen, environ, keep_unset=self.keep_unset, lenient=self.lenient
        )


def apply_overrides(
    plan: ResolvedPlan,
    *,
    model: str | None = None,
    provider: str | None = None,
    sets: Sequence[str] = (),
) -> ResolvedPlan:
    """The plan with the overrides of the command line applied.

    Args:
        plan: The plan; it is not modified.
        model: The model of the chosen provider, or else of the one used first.
        provider: An instance id or module id, with or without `provider-`: it is kept
            regardless of its condition and used first.
        sets: Strings `path.to.key=value`, applied in order. A value that starts with a
            bracket, a brace or a quote is parsed as YAML, any other as one plain scalar.

    Raises:
        UsageError: A string is not an assignment.
        PlanError: A value is not valid YAML.
    """
    before = plan.chosen
    chosen = before._replace(
        provider=provider or before.provider,
        model=model or before.model,
        sets=(*before.sets, *overrides.parse_sets(sets)),
    )
    return plan.copy(chosen=chosen)
