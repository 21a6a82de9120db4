"""`amplifier module validate`: check a module against the contract of its kind."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amplifier_app.base.errors import Location, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.outcome import Ending
from amplifier_app.commands.duration import parse_duration
from amplifier_app.commands.plan_options import chosen_plan
from amplifier_app.plan.overrides import apply_sets, parse_sets
from amplifier_app.plan.requirements import PlanRequirement, check_requirement
from amplifier_app.plan.source_spec import SourceSyntaxError, without_password
from amplifier_app.plan.tree.entries import ModuleKind
from amplifier_app.plan.tree.merge import merge_nodes
from amplifier_app.plan.tree.nodes import MAX_BYTES, NOWHERE, MapNode, plain_data
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_yaml
from amplifier_app.render.report import print_report
from amplifier_app.render.table import OutputOption
from amplifier_app.sources.resolver import resolver_for
from amplifier_kit.validation.validate import find_subject, validate_module
from amplifier_support.files import read_file_or_stream

if TYPE_CHECKING:
    from amplifier_app.sources.resolver import AppModuleSourceResolver

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def validate(
    module: Annotated[
        str,
        typer.Argument(
            metavar="PATH|ID|SOURCE",
            help="Folder or Python file, id of a bundled or installed module, or a source: git+https://…",
            show_default=False,
        ),
    ],
    kind: Annotated[
        ModuleKind | None,
        typer.Option("--type", "-t", help="Module type. [default: as declared by the module]"),
    ] = None,
    config: Annotated[
        list[str] | None,
        typer.Option(
            "--config",
            "-c",
            metavar="FILE|KEY=VALUE",
            help="Configuration for mount(): a YAML or JSON file, or single values; repeatable.",
        ),
    ] = None,
    requires: Annotated[
        list[str] | None,
        typer.Option(
            "--requires",
            metavar="REQUIREMENT",
            help="Package to install for it, as in 'requires' of a plan's entry; repeatable.",
        ),
    ] = None,
    behavioral: Annotated[
        bool, typer.Option("--behavioral", help="Also run the behaviour suite of its kind.")
    ] = False,
    timeout: Annotated[
        str,
        typer.Option("--timeout", metavar="TIME", help="Time limit for each part: 90, 90s, 5m."),
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
