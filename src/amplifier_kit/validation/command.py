"""`amplifier module validate`: check a module against the contract of its kind.

The source of the folder is also checked for arguments that the kernel's models ignore, such as
`HookResult(actoin="deny")`: the models accept unknown fields, because published modules pass some. Reading
the source covers code that the other checks do not run.
"""

from __future__ import annotations

import ast
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from pydantic import BaseModel

import amplifier_core
from amplifier_app.base import installed, paths
from amplifier_app.base.checks import Check, Report
from amplifier_app.base.errors import Location, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.commands.option import parse_duration
from amplifier_app.commands.plan_options import chosen_plan
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.overrides import apply_sets, parse_sets
from amplifier_app.plan.requirements import PlanRequirement
from amplifier_app.plan.source_spec import SourceSyntaxError, check_requirement, without_password
from amplifier_app.plan.tree.entries import ModuleKind
from amplifier_app.plan.tree.merge import merge_nodes
from amplifier_app.plan.tree.nodes import MAX_BYTES, NOWHERE, MapNode, plain_data
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_yaml
from amplifier_app.render.report import print_report
from amplifier_app.render.table import OutputOption
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetching import Fetcher
from amplifier_app.sources.requirements.dependencies import DependencyCache
from amplifier_app.sources.requirements.layout import Layout, find_layout, required_by
from amplifier_app.sources.requirements.names import distributions, preferred_in
from amplifier_app.sources.resolver import AppModuleSourceResolver, resolver_for
from amplifier_core.module_sources import ENTRY_POINT_GROUP, ModuleNotFoundError
from amplifier_kit.validation.advice import ASKS
from amplifier_kit.validation.isolation import MEMORY_BYTES, Tried, try_out
from amplifier_support.files import read_file_or_stream
from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import did_you_mean

if TYPE_CHECKING:
    from amplifier_app.sources.resolved import ResolvedSource
    from amplifier_app.sources.resolver import AppModuleSourceResolver


# -- checks a module's folder ------------------------------------------------------------


_MORE = {"ToolResult": {"is_error"}}
"""Arguments that a model reads although they are not fields."""


def _check_keywords(package: Path) -> Check:
    """Check the calls of the kernel's models in a package or a single file."""
    faults = [
        f"{file.relative_to(package.parent)}, line {line}: {fault}"
        for file in (sorted(package.rglob("*.py")) if package.is_dir() else [package])
        for line, fault in _faults(file)
    ]
    if not faults:
        return Check("model_fields", True, "no argument of a model of the kernel is ignored")
    return Check("model_fields", False, "; ".join(faults[:3]), "warning", "correct the name")


def _faults(file: Path) -> Iterator[tuple[int, str]]:
    try:
        tree = ast.parse(file.read_bytes())
    except (OSError, SyntaxError, ValueError, RecursionError):
        # Reported by the import.
        return
    models = dict(_imported(tree))
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Name):
            continue
        model = models.get(node.func.id)
        if model is None:
            continue
        known = model.model_fields.keys() | _MORE.get(model.__name__, set())
        for keyword in node.keywords:
            if keyword.arg is not None and keyword.arg not in known:
                hint = did_you_mean(keyword.arg, known)
                fault = f"{model.__name__} has no field {keyword.arg!r} and ignores it"
                yield node.lineno, fault + (f"; {hint}" if hint else "")


def _imported(tree: ast.AST) -> Iterator[tuple[str, type[BaseModel]]]:
    """Models that are imported from the kernel and ignore unknown fields, by local name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("amplifier_core"):
            for alias in node.names:
                model: Any = getattr(amplifier_core, alias.name, None)
                is_model = isinstance(model, type) and issubclass(model, BaseModel)
                if is_model and model.model_config.get("extra") != "allow":
                    yield alias.asname or alias.name, model


class Subject(NamedTuple):
    """A module to validate.

    Attributes:
        shown: Its name in the report.
        path: Its folder or file; None if it is installed.
        layout: How it is imported, if already known.
    """

    shown: str
    path: Path | None
    layout: Layout | None = None


def find_subject(text: str, resolver: Callable[[], AppModuleSourceResolver]) -> Subject:
    """The module that a command-line argument refers to.

    Args:
        text: A folder or file, a source as in a plan, or the id of a module.
        resolver: Returns the resolver of ids; called only for an id.

    Raises:
        UsageError: The module is unknown.
        SourceError: The source is unavailable.
    """
    path = Path(os.path.expanduser(text)).absolute()
    if path.is_dir() or path.suffix == ".py":
        _refuse_missing(path, text)
        return Subject(str(path), path)
    if path.exists():
        return _fetch(str(path))
    if "://" in text:
        return _fetch(text)
    if os.sep in text or text.startswith(("~", ".")):
        _refuse_missing(path, text)
    if re.search(r"[=<>~!\[]", text):
        return _fetch(text)
    try:
        source = resolver().resolve(text)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"{text!r} is neither a folder or file here nor a known module id",
            hint=did_you_mean(text, installed.bundled_modules(), 0.7)
            or "Pass its folder, a source such as git+https://…, or an id from "
            "'amplifier module list'.",
        ) from error
    return _to_subject(source, f"{text} ({source.text})", text)


def _refuse_missing(path: Path, text: str) -> None:
    if path.exists():
        return
    siblings = os.listdir(path.parent) if path.parent.is_dir() else []
    nearby = [str(Path(text).parent / name) for name in siblings]
    raise UsageError(
        f"no such folder or file: {path}", hint=did_you_mean(str(Path(text)), nearby, 0.7)
    )


def _fetch(source: str) -> Subject:
    name = _name_in(source)
    # Use exactly this source, without any override for a module of that name.
    resolved = AppModuleSourceResolver(environ={}).resolve(name, source_hint=source)
    return _to_subject(resolved, resolved.text, name)


def _to_subject(source: ResolvedSource, label: str, name: str) -> Subject:
    if not source.installed:
        return Subject(label, source.root, source.layout)
    layout = _installed_layout(name, source.entry_point or "")
    of = (source.distribution, source.version) if source.distribution and source.version else None
    if source.layout is not None:
        added, dependencies = source.layout.added, source.layout.dependencies
        layout = layout._replace(added=added, dependencies=dependencies)
    return Subject(label, None, layout._replace(distribution=of, installed=True))


def _name_in(source: str) -> str:
    """The name of a repository, archive or package, the closest thing to an id."""
    name = re.split(r"[/:]", source.partition("#")[0].rstrip("/"))[-1]
    match = re.match(r"[A-Za-z0-9_-]+", name)
    return match[0] if match else "module"


def _installed_layout(module_id: str, entry_point: str) -> Layout:
    """The layout of a package on `sys.path`, found without importing it."""
    target = entry_point.partition(":")[0]
    top, *inner = target.split(".")
    spec = find_spec(top)
    if spec is None or spec.origin is None:
        raise UsageError(f"{module_id} is installed as {target}, but that package was not found")
    file = Path(spec.origin)
    package = file.parent if file.name == "__init__.py" else file
    if inner and package.is_dir():
        folder = package.joinpath(*inner)
        package = folder if folder.is_dir() else folder.with_suffix(".py")
    return Layout(Path(), entry_point, package, module_id=module_id)


DEFAULT_SECONDS = 60.0

_KEY = "api_key"
_MADE_UP_KEY = "made-up-by-module-validate"
"""The key for providers that have none; checks of their structure contact no service."""

_SUITE = ("pytest>=8.3", "pytest-asyncio>=0.25")
"""Requirements of the behaviour suites, which normal use does not need."""


def validate_module(
    subject: Subject,
    *,
    kind: str | None = None,
    config: Mapping[str, Any] | None = None,
    behavioral: bool = False,
    requires: Sequence[PlanRequirement] = (),
    seconds: float = DEFAULT_SECONDS,
    memory: int = MEMORY_BYTES,
) -> Report:
    """Check a module from its folder to its behaviour.

    Args:
        subject: The module.
        kind: The kind to check it as; by default the one it declares.
        config: The configuration for `mount`.
        behavioral: Whether to run the behaviour suite of its kind as well.
        requires: Requirements that a plan adds to it.
        seconds: Time limit of each of the two child processes.
        memory: Limit of resident memory of each of them, in bytes.
    """
    checks: list[Check] = []
    layout = _find_layout(subject, checks)
    if layout is not None and requires:
        layout = layout._replace(added=(*layout.added, *Fetcher().additions(requires)))
    folders = _install(layout, checks) if layout is not None else []
    if layout is None or _has_errors(checks):
        entry_point = layout.entry_point if layout is not None else None
        return Report(subject.shown, kind, entry_point, tuple(checks))
    checks.append(_check_keywords(layout.package))
    request: dict[str, Any] = {
        "mode": "contract",
        # An installed module is already on the child's path.
        "folder": "" if subject.path is None else str(layout.folder),
        "import_paths": folders,
        "preferred_paths": _preferred_folders(folders),
        "entry_point": layout.entry_point,
        "package": str(layout.package),
        "name": layout.module_id or layout.package.stem,
        "kind": kind,
        "config": dict(config or {}),
    }
    tried = try_out(request, seconds=seconds, memory=memory)
    if _has_declined(tried) and _KEY not in request["config"]:
        keyed = request | {"config": {**request["config"], _KEY: _MADE_UP_KEY}}
        with_key = try_out(keyed, seconds=seconds, memory=memory)
        if not _has_errors(with_key.checks):
            request, tried = keyed, with_key
            message = f"it mounts nothing without a key; checked with a made-up {_KEY}"
            advice = f"pass a real one with --config {_KEY}=… or in the environment"
            checks.append(Check("credentials", False, message, "info", advice))
    kind = tried.kind or kind
    checks += tried.checks
    output = tried.output
    if behavioral and any(check.message.startswith(ASKS) for check in checks):
        advice = "pass its settings with --config"
        checks.append(Check("behavior", False, "not checked: nothing is mounted", "info", advice))
    elif behavioral and kind is not None and not _has_errors(checks):
        folders += _install_suite(folders, checks)
        request |= {"mode": "behaviour", "kind": kind, "import_paths": folders}
        request |= {"preferred_paths": _preferred_folders(folders)}
    if request["mode"] == "behaviour" and not _has_errors(checks):
        tried = try_out(request, seconds=seconds, memory=memory)
        # Findings that occur in both runs are listed once.
        checks += [check for check in tried.checks if check not in checks]
        output = "\n".join(filter(None, (output, tried.output)))
    return Report(subject.shown, kind, layout.entry_point, tuple(checks), output)


def _has_errors(checks: Iterable[Check]) -> bool:
    return any(not check.passed and check.severity == "error" for check in checks)


def _has_declined(tried: Tried) -> bool:
    """Return True if it is a provider that mounted nothing, as providers without a key do."""
    return tried.kind == "provider" and any(
        not check.passed and "mounted no provider" in check.message for check in tried.checks
    )


# -- structure and entry point -----------------------------------------------------------


def _find_layout(subject: Subject, checks: list[Check]) -> Layout | None:
    try:
        layout = subject.layout or find_layout(subject.path or Path())
    except SourceError as error:
        advice = error.hint or "see the structure of a module in: amplifier docs contracts"
        checks.append(Check("structure", False, error.message, advice=advice))
        return None
    checks.append(Check("structure", True, _structure(subject, layout)))
    target = layout.entry_point or layout.package.name
    if layout.module_id is not None:
        who = " ".join(layout.distribution) if layout.distribution else "pyproject.toml"
        message = f"{who} declares {layout.module_id} as {target}"
        checks.append(Check("entry_point", True, message))
        return layout
    name = layout.package.stem.removeprefix("amplifier_module_").replace("_", "-")
    checks.append(
        Check(
            "entry_point",
            False,
            "not declared in a pyproject.toml: it works as a folder, but not as an installed package",
            "warning",
            f'add [project.entry-points."{ENTRY_POINT_GROUP}"] with '
            f'{name} = "{layout.entry_point or f"{target}:mount"}"',
        )
    )
    return layout


def _structure(subject: Subject, layout: Layout) -> str:
    if subject.path is None:
        return f"installed at {layout.package}"
    if layout.package == subject.path and subject.path.is_dir():
        return "the folder is itself the package"
    within = layout.package.is_relative_to(subject.path) and layout.package != subject.path
    return f"the package is {layout.package.relative_to(subject.path) if within else layout.package.name}"


# -- dependencies ------------------------------------------------------------------------


def _cache() -> DependencyCache:
    return DependencyCache(paths.cache_dir() / "dependencies")


def _install(layout: Layout, checks: list[Check]) -> list[str]:
    """Folders of the module's dependencies, for the end of `sys.path`."""
    if layout.project_file is None and not layout.dependencies and not layout.added:
        return []
    try:
        folder = _cache().folder_for(layout)
    except SourceError as error:
        advice = error.hint or "fix 'dependencies' in pyproject.toml"
        checks.append(Check("dependencies", False, error.message, advice=advice))
        return []
    nothing = "all available" if required_by(layout) or layout.added else "none"
    message = f"installed into {folder}" if folder else nothing
    checks.append(Check("dependencies", True, message))
    return [str(folder)] if folder is not None else []


def _preferred_folders(folders: Iterable[str]) -> list[str]:
    """Folders of the module's dependencies that precede the environment on `sys.path`."""
    return [str(path) for folder in folders for path in preferred_in(Path(folder))]


def _install_suite(folders: list[str], checks: list[Check]) -> list[str]:
    """Folders of the suite's dependencies that the environment lacks, for the end of `sys.path`.

    Args:
        folders: Folders of the module's dependencies, whose versions take precedence.
        checks: Receives a finding if the dependencies are unavailable.
    """
    layout = Layout(Path("the behaviour suite"), None, Path(), dependencies=_SUITE)
    try:
        folder = _cache().folder_for(layout, pins=distributions(folders))
    except SourceError as error:
        advice = "install pytest and pytest-asyncio next to Amplifier"
        checks.append(Check("behavior", False, error.message, advice=advice))
        return []
    return [str(folder)] if folder is not None else []


# -- amplifier module validate -----------------------------------------------------------


app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def validate(
    module: Annotated[
        str,
        argument(
            "PATH|ID|SOURCE",
            "Folder or Python file, id of a bundled or installed module, or a source: git+https://…",
        ),
    ],
    kind: Annotated[
        ModuleKind | None, option("-t, --type", "Module type. [default: as declared by the module]")
    ] = None,
    config: Annotated[
        list[str] | None,
        option(
            "-c, --config FILE|KEY=VALUE",
            "Configuration for mount(): a YAML or JSON file, or single values; repeatable.",
        ),
    ] = None,
    requires: Annotated[
        list[str] | None,
        option(
            "--requires REQUIREMENT",
            "Package to install for it, as in 'requires' of a plan's entry; repeatable.",
        ),
    ] = None,
    behavioral: Annotated[
        bool, option("--behavioral", "Also run the behaviour suite of its kind.")
    ] = False,
    timeout: Annotated[
        str, option("--timeout TIME", "Time limit for each part: 90, 90s, 5m.")
    ] = "1m",
    output: OutputOption = "text",
) -> None:
    """Check a module: structure, entry point, mount, protocol, schemas, cleanup, behaviour.

    \b
      amplifier module validate ./my-tool
      amplifier module validate ./my-tool --behavioral
      amplifier module validate tool-bash --output json

    Imports and mounts the module with your rights, in a separate process; everything it starts
    is stopped at the end. Exits with 3 if the module is not valid, 2 if it does not exist.
    """
    seconds = parse_duration(timeout)
    settings = _config(config or [])
    report = validate_module(
        find_subject(module, _resolver),
        kind=kind,
        config=settings,
        behavioral=behavioral,
        requires=[_requirement(text) for text in requires or ()],
        seconds=seconds,
    )
    if output == "json":
        print(json_text(report.as_json()))
    else:
        print_report(report)
    if not report.passed:
        raise typer.Exit(Ending.MODULE.exit_code)


def _resolver() -> AppModuleSourceResolver:
    """The resolver of a run here, so that an id means the module it would use."""
    return resolver_for(chosen_plan())


def _requirement(text: str) -> PlanRequirement:
    """
    Raises:
        UsageError: It is invalid or not allowed.
    """
    try:
        check_requirement(text)
    except SourceSyntaxError as error:
        raise UsageError(f"--requires: {error.message}", hint=error.hint) from error
    return PlanRequirement(text, without_password(text), Location("--requires"))


def _config(texts: list[str]) -> dict[str, Any]:
    """Files and `key=value` texts merged into one mapping; later ones win."""
    problems = Problems()
    tree = MapNode({}, NOWHERE)
    for text in texts:
        if "=" in text and not Path(text).is_file():
            tree = apply_sets(tree, parse_sets([text], option="--config"), problems)
            continue
        try:
            data = read_file_or_stream(text, MAX_BYTES + 1)
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(
                f"cannot read the config {text}: {reason}", hint="Pass a file or KEY=VALUE."
            ) from error
        node = read_yaml(data, text, problems)
        problems.raise_if_any()
        merged = merge_nodes(tree, node) if node is not None else tree
        if not isinstance(merged, MapNode):
            raise UsageError(f"the config {text} is not a mapping")
        tree = merged
    problems.raise_if_any()
    return plain_data(tree)
