"""`amplifier provider list|forget`: the providers, and their stored keys."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.keys import KeyStore
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import claim_stdout, terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.plan_options import chosen_plan, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.render.ansi import wrapped
from amplifier_app.render.table import Column, OutputOption, table
from amplifier_app.runtime.provider_access import (
    Credential,
    all_providers,
    describe,
    find_credentials,
    find_provider,
)
from amplifier_app.sources.resolver import resolver_for

if TYPE_CHECKING:
    from amplifier_app.base.keys import Where
    from amplifier_app.runtime.provider_access import Provider
    from amplifier_app.sources.resolver import AppModuleSourceResolver


list_app = typer.Typer(add_completion=False, rich_markup_mode=None)

COLUMNS = (
    Column("PROVIDER"),
    Column("IN PLAN", drop=1),
    Column("KEY", "wrap", least=18),
    Column("MODEL", "end", drop=2),
    Column("FROM", "middle", drop=3),
)


@list_app.command()
@takes_plan_options("profile", "plan")
def list_providers(
    context: typer.Context,
    *,
    request: Request,
    output: OutputOption = "text",
) -> None:
    """List the providers in the plan, then other bundled and installed ones.

    KEY shows where the key comes from (the key itself is never shown): an environment variable,
    the keyring, the key file, or the plan. Does not use the network.
    """
    invocation: Invocation = context.obj
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    # The table shows what modules without a key log.
    logging.getLogger().addHandler(logging.NullHandler())
    chosen = chosen_plan(request)
    rows = run_loop(
        _rows(all_providers(chosen), resolver_for(chosen, offline=True), KeyStore().names())
    )
    if output == "json":
        invocation.stdout.write(json_text(rows) + "\n")
        return
    width = terminal_width(invocation.stdout.fd)
    lines = table(COLUMNS, [_cells(row) for row in rows], width)
    reasons = [f"{row['name']} skipped: {row['left_out']}" for row in rows if row["left_out"]]
    if reasons:
        lines.append("")
    for reason in map(one_line, reasons):
        lines += [reason] if width is None else wrapped(reason, width, "  ")
    invocation.stdout.write("\n".join([*lines, ""]))


async def _rows(
    providers: list[Provider], sources: AppModuleSourceResolver, stored: dict[str, Where]
) -> list[dict[str, Any]]:
    return [await _row(provider, sources, stored) for provider in providers]


async def _row(
    provider: Provider, sources: AppModuleSourceResolver, stored: dict[str, Where]
) -> dict[str, Any]:
    row: dict[str, Any] = {
        "name": provider.name,
        "module": provider.module,
        "in_plan": provider.in_plan,
        "left_out": provider.left_out,
        "source": provider.source or provider.offered_by,
        "origin": provider.origin,
        "display_name": None,
        "credentials": [],
        "variables": [],
        "needs_key": None,
        "default_model": None,
        "problem": None,
    }
    try:
        info, ready = await describe(provider, sources)
    # A provider may be third-party code; one that fails must not hide the others.
    except Exception as error:
        return {**row, "problem": str(error).splitlines()[0] if str(error) else repr(error)}
    credentials = find_credentials(info, provider, stored)
    model = info.defaults.get("model")
    return {
        **row,
        "display_name": info.display_name,
        "credentials": [credential._asdict() for credential in credentials],
        "variables": list(info.credential_env_vars),
        "needs_key": bool(info.credential_env_vars) and not ready,
        "default_model": model if isinstance(model, str) else None,
    }


def _cells(row: dict[str, Any]) -> tuple[str, ...]:
    if row["problem"]:
        key = f"? {row['problem']}"
    elif row["credentials"]:
        key = str(Credential(**row["credentials"][0]))
    elif row["needs_key"]:
        key = f"none: {' or '.join(row['variables'])}"
    else:
        key = "not needed"
    use = "yes" if row["in_plan"] else "no" if row["left_out"] else ""
    return row["name"], use, key, row["default_model"] or "", row["source"] or "?"


forget_app = typer.Typer(add_completion=False, rich_markup_mode=None)


@forget_app.command()
def forget(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="Provider, or the variable a key is stored as.")
    ],
) -> None:
    """Remove the stored keys of a provider from the keyring or the file.

    \b
      amplifier provider forget openai

    Environment variables, settings and plans are not changed.
    """
    store = KeyStore()
    stored = store.names()
    # Variables are upper case, providers are not.
    variables = [name] if name in stored or name.isupper() else _variables(name)
    gone = [variable for variable in variables if variable in stored and store.forget(variable)]
    if not gone:
        hint = f"Stored keys: {', '.join(stored)}" if stored else "No keys are stored."
        raise ConfigError(f"no stored key for {name}", hint=hint)
    for variable in gone:
        to_stderr(f"amplifier: removed the stored key {variable}")


def _variables(name: str) -> list[str]:
    logging.getLogger().addHandler(logging.NullHandler())
    plan = chosen_plan()
    provider = find_provider(plan, name)
    described = run_loop(describe(provider, resolver_for(plan, offline=True)))
    return list(described.info.credential_env_vars)
