"""A plan ready to run: what is mounted, with which configuration, and where each value is from.

read_plan / read_profile    files → merged tree       (structure: told when loading)
apply_overrides             --model --provider --set
ResolvedPlan                conditions and variables  (environment: told when first read)
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from amplifier_app.base import keys
from amplifier_app.base.errors import ConfigError, Location
from amplifier_app.plan import documents, masking, overrides
from amplifier_app.plan.conditions import Dropped
from amplifier_app.plan.nodes import NOWHERE, MapNode, plain_data, text_of, with_items
from amplifier_app.plan.resolution import Resolution, Unset, entries_of, resolve
from amplifier_app.plan.scopes import Override, read_settings
from amplifier_app.plan.shapes import ENTRY_SECTIONS, PARTS
from amplifier_app.plan.structure import entry_key
from amplifier_app.plan.traffic import NO_TRAFFIC, Traffic

if TYPE_CHECKING:
    from amplifier_app.plan.bundles import OpenFetcher
    from amplifier_app.plan.requirements import PlanRequirement

DEFAULT_PROFILE = "default"


class ResolvedPlan:
    """One plan with overrides, conditions and variables applied.

    Loading has checked its structure. What depends on the environment (an unset
    variable, a provider that is not there) is told by `resolve` or by the first member
    that needs it, so that overrides may still mend it.

    Args:
        merged: The plan as the files say it.
        chosen: What `--provider`, `--model` and `--set` ask for.
        environ: What variables and conditions are read from; the process's own
            environment and the stored keys at the time of reading by default.
        keep_unset: Whether texts that name variables which are not set stay as they are
            written; see `unset`. Otherwise that is a problem.
        lenient: Whether to go on over everything that is wrong with variables and sources, which
            stay as they are written. A plan that is not lenient tells it.
    """

    def __init__(
        self,
        merged: documents.MergedPlan,
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

    @property
    def name(self) -> str:
        """The plan's `name:`, else the profile's name or the file's stem."""
        return self.merged.name

    def resolve(self) -> ResolvedPlan:
        """Itself, having told everything that is wrong.

        Raises:
            PlanError: Unset variables, overrides that name what is not there, bad sources.
        """
        _ = self._resolution
        return self

    def with_tree(self, tree: MapNode) -> ResolvedPlan:
        """The plan with another tree, of values that come from this one's files."""
        other = ResolvedPlan(
            self.merged,
            self.chosen,
            self.environ,
            keep_unset=self.keep_unset,
            lenient=self.lenient,
        )
        other._resolution = self._resolution._replace(tree=tree)
        return other

    @property
    def data(self) -> dict[str, Any]:
        """The plan as plain data: `name`, `instruction`, `session`, `providers` …

        Sources that are paths are absolute.
        """
        return plain_data(self.tree)

    @property
    def tree(self) -> MapNode:
        """The plan with the place of every value."""
        return self._resolution.tree

    @property
    def dropped(self) -> list[Dropped]:
        """The entries that conditions left out."""
        return list(self._resolution.dropped)

    @property
    def notes(self) -> list[str]:
        """Sentences on what was left out or has no effect, for a person."""
        left_out = [f"{entry.key} is left out: {entry.reason}" for entry in self.dropped]
        return [*left_out, *self._resolution.notes, *self.warnings]

    @property
    def warnings(self) -> list[str]:
        """Those of the notes that tell of what could be a mistake."""
        return [*self.merged.warnings, *self._resolution.warnings]

    @property
    def unset(self) -> list[Unset]:
        """The variables that are not set, where the plan was loaded with `keep_unset`."""
        return list(self._resolution.unset)

    @property
    def sources(self) -> Mapping[str, Override]:
        """Where settings say that modules come from, by module id, whatever the plan says."""
        return self._resolution.sources

    @property
    def display(self) -> Mapping[str, str]:
        """What settings say about what is shown, and how: `show` and `screen`."""
        return self.merged.display

    @property
    def requires(self) -> Mapping[str, tuple[PlanRequirement, ...]]:
        """What entries add to the requirements of their modules, by module id."""
        return self._resolution.requires

    @property
    def project(self) -> Path | None:
        """The folder of the trusted project that counted, if one did."""
        return self.merged.project

    @property
    def files(self) -> tuple[Path, ...]:
        """Every file that was read for it, absolute.

        Settings, the plan, what it extends, files of agents and what instructions include.
        """
        return self.merged.files

    @property
    def instruction(self) -> str | None:
        """The system prompt, if the plan gives one."""
        return text_of(self.tree.items.get("instruction"))

    @property
    def default_provider(self) -> str | None:
        """The key of the provider that is asked first, if any is left."""
        entry = overrides.first_provider(self.tree, entries_of(self.tree, "providers"))
        return entry_key(entry) if entry is not None else None

    def origin(self, path: str | Sequence[str | int]) -> Location:
        """Where a value was written, such as that of `tools.tool-bash.config.timeout`.

        `sources.tool-bash` is the place where settings override the module's source.

        Raises:
            ConfigError: The plan has no such value.
        """
        tree = self.tree
        if self.merged.sources:
            sources = MapNode(self.merged.sources, NOWHERE)
            tree = with_items(tree, {"sources": sources, **tree.items})
        return overrides.look_up(tree, path).at

    def mount_plan(self) -> dict[str, Any]:
        """The plan for `AmplifierSession`, freshly built: `session`, lists of modules, `agents`."""
        data = plain_data(self.tree)
        plan: dict[str, Any] = {"session": data["session"]}
        for section in ENTRY_SECTIONS:
            plan[section] = data.get(section, [])
        plan["providers"] = [*plan["providers"], *self.chosen.traffic.entries()]
        for module in (*(plan["session"][part] for part in PARTS), *_modules_of(plan)):
            module.setdefault("config", {})
        if "agents" in data:
            plan["agents"] = data["agents"]
        return plan

    def to_yaml(self, *, masked: bool = True) -> str:
        """The plan as YAML that can be loaded again, secrets masked unless told otherwise."""
        import yaml

        tree = masking.masked_tree(self.tree) if masked else masking.open_tree(self.tree)
        data = plain_data(tree)
        dumper: Any = getattr(yaml, "CSafeDumper", yaml.SafeDumper)
        return yaml.dump(
            data, Dumper=dumper, sort_keys=False, allow_unicode=True, default_flow_style=False
        )

    @cached_property
    def _resolution(self) -> Resolution:
        environ = keys.environment() if self.environ is None else self.environ
        return resolve(
            self.merged,
            self.chosen,
            environ,
            keep_unset=self.keep_unset,
            lenient=self.lenient,
        )


def load_plan(
    path: Path | str,
    *,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    fetch: OpenFetcher,
) -> ResolvedPlan:
    """A plan file with everything it extends and includes. It stands alone: of the settings, only
    their `sources` count, and their providers where it names none.

    Args:
        path: The file.
        environ: See `ResolvedPlan`.
        project: The folder of a trusted project, whose profiles it can extend.
        fetch: What fetches the bundles.

    Raises:
        ConfigError: The file cannot be read.
        PlanError: Its structure is wrong; all problems at once.
    """
    merged = documents.read_plan(path, read_settings(project), fetch=fetch)
    return ResolvedPlan(merged, environ=environ)


def load_profile(
    name: str | None = None,
    *,
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    fetch: OpenFetcher,
) -> ResolvedPlan:
    """A profile by name with the settings on top: the project's, else the user's own, else the
    packaged one.

    Args:
        name: The profile; by default the one that the nearest settings name.
        environ: See `ResolvedPlan`.
        project: The folder of a trusted project. Without it nothing of any project counts.
        fetch: What fetches the bundles.

    Raises:
        ConfigError: There is none.
        PlanError: Its structure or that of the settings is wrong; all problems at once.
    """
    settings = read_settings(project)
    at = None
    if name is None:
        named = settings.profile
        name = text_of(named) or DEFAULT_PROFILE
        at = named.at if named is not None else None
    merged = documents.read_profile(name, settings, at, fetch=fetch)
    return ResolvedPlan(merged, environ=environ)


def load(
    *,
    plan: Path | str | None = None,
    profile: str | None = None,
    provider: str | None = None,
    model: str | None = None,
    sets: Sequence[str] = (),
    environ: Mapping[str, str] | None = None,
    project: Path | None = None,
    keep_unset: bool = False,
    lenient: bool = False,
    traffic: Traffic = NO_TRAFFIC,
    fetch: OpenFetcher,
) -> ResolvedPlan:
    """The plan a command asks for, completely resolved; the default profile if it names none.

    Args:
        plan: A plan file, which stands alone.
        profile: A profile, which settings lie on.
        provider: See `apply_overrides`.
        model: See `apply_overrides`.
        sets: See `apply_overrides`.
        environ: See `ResolvedPlan`.
        project: The folder of a trusted project. Without it nothing of any project counts.
        keep_unset: See `ResolvedPlan`.
        lenient: See `ResolvedPlan`.
        traffic: What is recorded or replayed.
        fetch: What fetches the bundles.

    Raises:
        ConfigError: Plan and profile are both named, or one cannot be found.
        PlanError: Anything about it is wrong.
    """
    if plan is not None and profile is not None:
        raise ConfigError("a plan and a profile are both named", hint="give one of them")
    if plan is not None:
        loaded = load_plan(plan, environ=environ, project=project, fetch=fetch)
    else:
        loaded = load_profile(profile, environ=environ, project=project, fetch=fetch)
    changed = apply_overrides(loaded, provider=provider, model=model, sets=sets)
    changed.keep_unset, changed.lenient = keep_unset, lenient
    changed.chosen = changed.chosen._replace(traffic=traffic)
    return changed.resolve()


def apply_overrides(
    plan: ResolvedPlan,
    *,
    model: str | None = None,
    provider: str | None = None,
    sets: Sequence[str] = (),
) -> ResolvedPlan:
    """The plan with what the command line asks for on top.

    Args:
        plan: The plan; it stays as it is.
        model: The model of the chosen provider, else of the one asked first.
        provider: An instance id or module id, with or without `provider-`: it stays
            whatever its condition and is asked first.
        sets: Texts `path.to.key=value`, applied in order. A value that starts with a
            bracket, a brace or a quote is read as YAML, any other as one plain scalar.

    Raises:
        PlanError: A text has no such form.
    """
    before = plan.chosen
    chosen = overrides.Overrides(
        provider=provider or before.provider,
        model=model or before.model,
        sets=(*before.sets, *overrides.parse_sets(sets)),
        traffic=before.traffic,
    )
    return ResolvedPlan(
        plan.merged,
        chosen,
        plan.environ,
        keep_unset=plan.keep_unset,
        lenient=plan.lenient,
    )


def _modules_of(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for section in ENTRY_SECTIONS:
        yield from plan[section]
