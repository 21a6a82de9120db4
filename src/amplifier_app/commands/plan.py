"""`amplifier plan`: one module per command, imported when invoked."""

from __future__ import annotations

import asyncio
import json
import os
import shlex
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from amplifier_app.base.atomic_write import write_whole
from amplifier_app.base.errors import ConfigError, Location, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.locks import changing_settings
from amplifier_app.base.outcome import Ending
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.group import command_group
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.dry_run import dry_run
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import takes_options_of
from amplifier_app.plan.documents.plan_files import MergedPlan
from amplifier_app.plan.documents.scopes import read_settings
from amplifier_app.plan.explain import Change, Explained, as_json, differences, dotted, explain
from amplifier_app.plan.masking import masked_tree, open_tree
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.plan.resolution import with_sources
from amplifier_app.plan.schema.json_schema import plan_schema
from amplifier_app.plan.source_spec import (
    FolderSource,
    SourceSyntaxError,
    parse_source,
    without_password,
)
from amplifier_app.plan.tree.edit import origins_of, place_of, shown_place_of, yaml_text
from amplifier_app.plan.tree.entries import entry_keys
from amplifier_app.plan.tree.nodes import MapNode, Node, Scalar, plain_data
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.render.table import OutputOption
from amplifier_app.sources.loading import Fetching, load_plan, load_profile, read_source
from amplifier_app.sources.lockfile import Lock, lock_path_for
from amplifier_app.sources.plan_lock import Difference, make_lock
from amplifier_app.sources.plan_lock import differences as lock_differences
from amplifier_app.trust import folder_if_trusted
from amplifier_app.trust.renewal import keeping_trust

app = command_group(
    "plan",
    {},
)


_OPTIONS = (
    *("profile", "plan", "provider", "model", "sets"),
    *("timeout", "locked", "lock", "offline", "trust", "no_project"),
)


@app.command("check", short_help="Check that everything in the plan loads, without asking a model.")
@takes_options_of(Request, *_OPTIONS)
def check(context: typer.Context, request: Request, output: OutputOption = "text") -> None:
    """Fetch, install, import and mount everything the plan names, without asking a model.

    \b
      amplifier plan check
      amplifier plan check -f plan.yaml --locked
      amplifier plan check --output json

    Reports every problem at once. Exits with 78 if one of your files needs a fix, 2 if an option
    does, 3 if a module is at fault or --timeout is reached, otherwise 0. The modules run with your rights, as they do in a run.
    """
    invocation: Invocation = context.obj
    invocation.output = output
    raise typer.Exit(dry_run(request.validate(), invocation))


_SIGNS = {"added": "+", "removed": "-", "changed": "~"}


@app.command("diff", short_help="Show how two plans differ.")
def diff(
    old: Annotated[str, typer.Argument(metavar="A", help="A profile or a plan file.")],
    new: Annotated[
        str, typer.Argument(metavar="B", help="The profile or plan file to compare it with.")
    ],
    exit_code: Annotated[
        bool, typer.Option("--exit-code", help="Exit with 9 if there are differences.")
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Show how two plans differ, with everything they extend.

    \b
      amplifier plan diff default plan.yaml

    Compares them as written: variables are not replaced, and providers are included even without
    credentials on this machine.
    """
    project = folder_if_trusted()
    changes = differences(_read_merged(old, project), _read_merged(new, project))
    if output == "json":
        print(json_text([_facts(change) for change in changes]))
    else:
        for change in changes:
            print(for_terminal(_line(change)))
    if changes and exit_code:
        raise typer.Exit(Ending.CHECK_FAILED.exit_code)


def _read_merged(name: str, project: Path | None) -> MergedPlan:
    """The plan of a profile name or a file; a folder or an extension marks a file."""
    path = Path(name)
    is_file = len(path.parts) > 1 or path.suffix in (".yaml", ".yml", ".md") or path.is_absolute()
    loaded = load_plan(name, project=project) if is_file else load_profile(name, project=project)
    return loaded.merged


def _facts(change: Change) -> dict[str, Any]:
    sides = {"old": change.old, "new": change.new}
    values = {
        side: None if node is None else {"value": plain_data(node), "at": str(node.at)}
        for side, node in sides.items()
    }
    return {"path": dotted(change.path), "change": change.kind, **values}


def _line(change: Change) -> str:
    sides = [node for node in (change.old, change.new) if node is not None]
    values = " → ".join(_short(node) for node in sides)
    places = " → ".join(one_line(_place(node)) for node in sides)
    return f"{_SIGNS[change.kind]} {one_line(dotted(change.path))}: {values}  ({places})"


def _place(node: Node) -> str:
    """Where a value was written: relative to the working directory, or to the home with `~`."""
    place = shown_place_of(node)
    for folder, short in ((Path.cwd(), ""), (Path.home(), f"~{os.sep}")):
        if place.startswith(f"{folder}{os.sep}"):
            return short + place[len(str(folder)) + 1 :]
    return place


def _short(node: Node) -> str:
    return one_line(json.dumps(plain_data(node), ensure_ascii=False), 60)


@app.command("explain", short_help="Show where a value is set and what it replaced.")
@takes_plan_options("profile", "plan", "provider", "model", "sets")
def explain_command(
    path: Annotated[
        str,
        typer.Argument(metavar="PATH.TO.KEY", help="For example tools.tool-bash.config.timeout."),
    ],
    *,
    request: Request,
    output: OutputOption = "text",
) -> None:
    """Show a value of the plan, where it is set, and what it replaced, file by file.

    \b
      amplifier plan explain session.orchestrator
      amplifier plan explain tools.tool-bash -f plan.yaml

    For a config key that is not set, shows its default and description.
    """
    chosen = chosen_plan(request, keep_unset=True)
    try:
        found = explain(chosen, path)
    except ConfigError:
        if not os.path.isfile(path):
            raise
        hint = (
            f"Pass a plan file with -f: amplifier plan explain PATH.TO.KEY -f {shlex.quote(path)}"
        )
        raise UsageError(f"{path!r} is a file, not a key of the plan", hint=hint) from None
    if output == "json":
        print(json_text([_explain_facts(one) for one in found]))
        return
    for index, one in enumerate(found):
        if index:
            print()
        for line in _lines(one):
            print(for_terminal(line))


def _explain_facts(one: Explained) -> dict[str, Any]:
    value: dict[str, Any] = {"path": dotted(one.path), "value": None, "at": None, "replaced": []}
    if one.value is not None:
        value = as_json(one.value)
    rule = one.rule or {}
    known = {key: rule[key] for key in ("default", "description") if key in rule}
    return {**value, "set": one.value is not None, **known}


def _lines(one: Explained) -> list[str]:
    name = dotted(one.path)
    rows: list[tuple[str, str]] = []
    if one.value is None:
        text = f"{name} is not set"
    else:
        text = yaml_text(MapNode({name: one.value.node}, one.value.node.at)).rstrip()
        rows.append(("set in", place_of(one.value.node)))
        if one.value.written is not None:
            rows.append(("written as", one.value.written))
        if one.value.gone is not None:
            rows.append(("but", one.value.gone))
        rows += [
            ("replaces", f"{_explain_short(old)}  ({place_of(old)})") for old in one.value.replaced
        ]
    rule = one.rule or {}
    if "default" in rule:
        rows.append(("default", json.dumps(rule["default"], ensure_ascii=False)))
    if "description" in rule:
        rows.append(("meaning", str(rule["description"])))
    width = max((len(label) for label, _ in rows), default=0)
    details = [f"  {label.ljust(width)}  {one_line(value, 400)}" for label, value in rows]
    return [*text.splitlines(), *details]


def _explain_short(node: Node) -> str:
    return one_line(json.dumps(plain_data(node), ensure_ascii=False), 80)


@app.command("import", short_help="Convert a bundle and everything it includes to one plan.")
def import_bundle(
    bundle: Annotated[
        str, typer.Argument(metavar="BUNDLE", help="File, folder, source or name of a bundle.")
    ],
    file: Annotated[
        Path | None,
        typer.Option("--to", "-o", metavar="FILE", help="Write the plan to FILE.", dir_okay=False),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Overwrite FILE.")] = False,
) -> None:
    """Convert a bundle and everything it includes to one plan.

    \b
      amplifier plan import bundle.md -o plan.yaml

    The plan contains all their modules, agents and instructions, each with its origin in a
    comment. Variables are kept as written. Entries from a fetched bundle are pinned to the fetched
    commit.
    """
    if file is not None and file.exists() and not force:
        raise ConfigError(f"{file} already exists", hint="Pass --force to overwrite it.")
    settings, argument = read_settings(folder_if_trusted()), Location(bundle)
    try:
        merged = read_source(_as_path(bundle), argument, settings)
    except ConfigError as error:
        error.is_usage = error.location == argument
        raise
    text = flat_plan(merged, Path.cwd() if file is None else file.absolute().parent)
    for warning in merged.warnings:
        to_stderr(f"amplifier: {one_line(warning, 1000)}")
    if file is None:
        print(for_terminal(text), end="")
        return
    write_whole(file, text)
    to_stderr(one_line(f"amplifier: wrote {file}", 1000))


def flat_plan(merged: MergedPlan, folder: Path) -> str:
    """A plan with everything it extends and includes, as the text of one file.

    Args:
        merged: The plan.
        folder: The folder the text will be in; relative sources start there.
    """
    problems = Problems(merged.texts)

    def source(node: Scalar) -> str | None:
        text = str(node.value)
        # The values of variables are known only when the plan runs.
        return None if "${" in text else _from(folder, merged.source(text, node.at.file))

    tree = with_sources(merged.document, source, problems)
    problems.raise_if_any()
    head = [f"# {name}" for name in ("Imported with 'amplifier plan import' from:", *merged.chain)]
    if not entry_keys(tree, "providers"):
        head.append("# No provider is listed: choose one with '-p NAME', or add it.")
    name: Node = Scalar(merged.name, merged.document.at)
    named = MapNode({"name": name, **tree.items}, tree.at, tree.keys)
    return "\n".join([*head, "", yaml_text(open_tree(named, written=True), origins=True)])


def _as_path(bundle: str) -> str:
    """The bundle argument; an existing file or folder is always taken as a path."""
    path = Path(os.path.expanduser(bundle))
    is_path = not os.path.isabs(path) and path.exists()
    return f"./{bundle}" if is_path and not bundle.startswith((".", "~")) else bundle


def _from(folder: Path, source: str) -> str:
    """A source as a file in the folder would refer to it."""
    try:
        parsed = parse_source(source, folder)
    except SourceSyntaxError:
        return source
    if isinstance(parsed, FolderSource) and parsed.path.is_relative_to(folder):
        return f"./{parsed.path.relative_to(folder).as_posix()}"
    return source


@app.command("lock", short_help="Pin every module of the plan to an exact version.")
@takes_plan_options("profile", "plan")
def lock(
    *,
    request: Request,
    file: Annotated[
        Path | None,
        typer.Option("--to", "-o", metavar="FILE", help="Write the lock to FILE.", dir_okay=False),
    ] = None,
    check: Annotated[
        bool,
        typer.Option("--check", help="Write nothing; exit with 78 if the lock is out of date."),
    ] = False,
    output: OutputOption = "text",
) -> None:
    """Pin every module of the plan to an exact commit, content hash and version.

    \b
      amplifier plan lock -f plan.yaml
      amplifier plan lock -P review --check

    Existing pins are kept while their source is unchanged; `amplifier module update` moves them.
    Modules of agents, and providers skipped on this machine, are pinned as well.
    """
    # Locking a provider does not need its credentials.
    fetching = Fetching(keep=True, lock=file)
    chosen = chosen_plan(request, keep_unset=True, fetching=fetching)
    path = file or lock_path_for(chosen)
    while True:
        old = Lock.read(path) if check or path.exists() else None
        new = asyncio.run(make_lock(chosen, old))
        changed = old is None or old != new
        if not changed or check:
            break
        # Otherwise another process has changed it while the modules were fetched.
        with changing_settings(), keeping_trust(chosen.project, path):
            if new.replace(path, old):
                break
    found = lock_differences(old or Lock(plan=new.plan), new)
    if output == "json":
        facts = {"plan": new.plan, "lock": str(path), "changed": changed}
        rows = [one._asdict() for one in found]
        print(json_text({**facts, "modules": len(new.modules), "differences": rows}))
    else:
        _report(found, path, len(new.modules), changed=changed, check=check)
    if check and changed:
        raise typer.Exit(Ending.CONFIGURATION.exit_code)


def _report(
    found: list[Difference], path: Path, modules: int, *, changed: bool, check: bool
) -> None:
    for one in found:
        print(one_line(str(one)))
    if not changed:
        to_stderr(f"amplifier: {path} is up to date ({modules} modules)")
    elif check:
        to_stderr(f"amplifier: {path} is out of date\n  Update it: amplifier plan lock")
    else:
        to_stderr(f"amplifier: wrote {path} ({modules} modules)")


@app.command("schema", short_help="Print the JSON Schema of plans.")
def schema() -> None:
    """Print the JSON Schema of plans and profiles.

    Includes the config of bundled modules. To use it in an editor with a YAML language server,
    start a plan with "# yaml-language-server: $schema=FILE". The schema of settings is at
    FILE#/$defs/settings, that of agents at FILE#/$defs/agent.
    """
    print(json_text(plan_schema()))


@app.command("show", short_help="Show the merged plan with secrets masked.")
@takes_plan_options("profile", "plan", "provider", "model", "sets")
def show(
    *,
    request: Request,
    origins: Annotated[
        bool, typer.Option("--origins", help="Show the file and line of each value.")
    ] = False,
    output: Annotated[
        Literal["yaml", "json"], typer.Option("--output", help="Output format.")
    ] = "yaml",
) -> None:
    """Show the plan that `run` would use, merged from all its files.

    \b
      amplifier plan show
      amplifier plan show --origins -f plan.yaml
      amplifier plan show --output json

    Secrets are masked. Variables that are not set are kept as written and listed on stderr.
    """
    chosen = chosen_plan(request, keep_unset=True)
    print_plan(chosen, as_json=output == "json", origins=origins)


def print_plan(plan: ResolvedPlan, *, as_json: bool, origins: bool = False) -> None:
    """Print a plan loaded with `keep_unset`, and notes about it on stderr."""
    tree = masked_tree(plan.tree)
    if not as_json:
        for note in plan.notes:
            to_stderr(f"amplifier: {one_line(note)}")
        for one in plan.unset:
            to_stderr(f"amplifier: {one.name} is not set ({one_line(str(one.at))})")
        for module, override in plan.sources.items():
            place = f"{without_password(override.source)} ({override.at})"
            to_stderr(f"amplifier: {module} comes from {one_line(place)}")
        print(for_terminal(yaml_text(tree, origins=origins)), end="")
        return
    merged = plan.merged
    facts = {
        "name": plan.name,
        "digest": plan.digest,
        "files": list(merged.chain),
        "settings": list(merged.overlays),
        "project": None if plan.project is None else str(plan.project),
        "left_out": [
            {"key": left.key, "module": left.module, "reason": left.reason, "at": str(left.at)}
            for left in plan.dropped
        ],
        "notes": plan.notes,
        "unset": [{"name": one.name, "at": str(one.at)} for one in plan.unset],
        "sources": {
            module: {"source": without_password(override.source), "at": str(override.at)}
            for module, override in plan.sources.items()
        },
        "plan": plain_data(tree),
    }
    if origins:
        facts["origins"] = origins_of(tree)
    print(json_text(facts))
