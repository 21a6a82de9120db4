"""`amplifier module validate`: whether a module keeps the contract of its kind."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.outcome import Ending
from amplifier_app.commands.module.kinds import Kind
from amplifier_app.render.table import Format, OutputOption

if TYPE_CHECKING:
    from amplifier_app.sources.resolver import AppModuleSourceResolver

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
def validate(
    module: Annotated[
        str,
        typer.Argument(
            metavar="PATH|ID|SOURCE",
            help="Folder or Python file, id of a bundled or installed module, or a source as in "
            "a plan: git+https://…",
            show_default=False,
        ),
    ],
    kind: Annotated[
        Kind | None, typer.Option("--type", "-t", help="What it is; by default what it says.")
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
    behavioral: Annotated[
        bool, typer.Option("--behavioral", help="Run the behaviour suite of its kind as well.")
    ] = False,
    timeout: Annotated[
        float, typer.Option("--timeout", min=1, metavar="SECONDS", help="Time limit of each part.")
    ] = 60.0,
    output: OutputOption = Format.TEXT,
) -> None:
    """Check a module: structure, entry point, mount, protocol, schemas, cleanup, behaviour.

    The module is imported and mounted for real, with your rights, in a process of its own that
    nothing it starts outlives. Exit code 3 if it is not valid, 2 if there is no such module.
    """
    from amplifier_app.commands.module.validation.subject import find_subject
    from amplifier_app.commands.module.validation.validate import validate_module

    if not math.isfinite(timeout):
        raise UsageError(f"--timeout takes a number of seconds, and not {timeout}")
    settings = _config(config or [])
    report = validate_module(
        find_subject(module, _resolver),
        kind=kind.value if kind else None,
        config=settings,
        behavioral=behavioral,
        seconds=timeout,
    )
    if output is Format.JSON:
        print(json.dumps(report.as_json(), indent=2))
    else:
        from amplifier_app.render.report import print_report

        print_report(report)
    if not report.passed:
        raise typer.Exit(Ending.MODULE.exit_code)


def _resolver() -> AppModuleSourceResolver:
    """What a run here would ask, so that an id means the module that it would use."""
    from amplifier_app.commands.plan_options import chosen_plan
    from amplifier_app.sources.plan_resolver import resolver_for

    return resolver_for(chosen_plan(None, None))


def _config(texts: list[str]) -> dict[str, Any]:
    """Files and `key=value` texts as one mapping, later ones on top."""
    from amplifier_app.plan.merge import merge_nodes
    from amplifier_app.plan.nodes import NOWHERE, MapNode, plain_data
    from amplifier_app.plan.overrides import apply_sets, parse_sets
    from amplifier_app.plan.problems import Problems
    from amplifier_app.plan.yaml_reader import read_yaml

    problems = Problems()
    tree = MapNode({}, NOWHERE)
    for text in texts:
        if "=" in text and not Path(text).is_file():
            tree = apply_sets(tree, parse_sets([text], option="--config"), problems)
            continue
        try:
            data = Path(text).read_bytes()
        except OSError as error:
            reason = (error.strerror or str(error)).lower()
            raise UsageError(
                f"cannot read the config {text}: {reason}", hint="give a file or KEY=VALUE"
            ) from error
        node = read_yaml(data, text, problems)
        problems.raise_if_any()
        merged = merge_nodes(tree, node) if node is not None else tree
        if not isinstance(merged, MapNode):
            raise UsageError(f"the config {text} is not a mapping")
        tree = merged
    problems.raise_if_any()
    return plain_data(tree)
