"""`amplifier provider list|forget|models|test`: the providers, their stored keys, and requests to them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Coroutine
from typing import TYPE_CHECKING, Annotated, Any

import typer

from amplifier_app.base.errors import UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.keys import KeyStore
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import claim_stdout, terminal_width, to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.option import parse_duration
from amplifier_app.commands.plan_options import chosen_plan, skipped_lines, takes_plan_options
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.typer_options import argument, option
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.render.table import Column, OutputOption, table
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime.observers.notices import show_logs
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.provider_access import (
    Credential,
    all_providers,
    ask,
    describe,
    describe_address,
    find_access,
    find_credentials,
    find_provider,
)
from amplifier_app.runtime.provider_access import models as models_of
from amplifier_app.sources.resolver import resolver_for

if TYPE_CHECKING:
    from amplifier_app.base.keys import StoredKey
    from amplifier_app.runtime.provider_access import Answered, Provider
    from amplifier_app.sources.resolver import AppModuleSourceResolver
    from amplifier_core.models import ModelInfo

_PROVIDER_COLUMNS = (
    Column("PROVIDER"),
    Column("IN PLAN", drop=1),
    Column("KEY", "wrap", least=18),
    Column("MODEL", "end", drop=2),
    Column("FROM", "middle", drop=3),
)


@takes_plan_options("profile", "plan")
def list_providers(
    context: typer.Context, *, request: Request, output: OutputOption = "text"
) -> None:
    """List the providers in the plan, then other bundled and installed ones.

    KEY shows where the key comes from (the key itself is never shown): an environment variable,
    the keyring, the key file, or the plan, and the address it is sent to, if that is not the provider's own. Does not
    use the network.
    """
    invocation: Invocation = context.obj
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    # The table shows what modules without a key log.
    logging.getLogger().addHandler(logging.NullHandler())
    chosen = chosen_plan(request)
    sources, stored = resolver_for(chosen, offline=True), KeyStore().names()

    async def describe_all() -> list[dict[str, Any]]:
        return [await _row(provider, sources, stored) for provider in all_providers(chosen)]

    rows = run_loop(describe_all())
    if output == "json":
        invocation.stdout.write(json_text(rows) + "\n")
        return
    width = terminal_width(invocation.stdout.fd)
    lines = table(_PROVIDER_COLUMNS, [_cells(row) for row in rows], width)
    lines += skipped_lines(rows, "name", width)
    for row in rows:
        if row["warning"]:
            to_stderr(f"amplifier: warning: {row['name']}: {row['warning']}")
    invocation.stdout.write("\n".join([*lines, ""]))


async def _row(
    provider: Provider, sources: AppModuleSourceResolver, stored: dict[str, StoredKey]
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
        "address": None,
        "warning": None,
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
    access = find_access(info, provider)
    model = info.defaults.get("model")
    return {
        **row,
        "address": describe_address(info, access) or None,
        "warning": access.ignored or None,
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
    key = f"{key}; at {row['address']}" if row["address"] else key
    use = "yes" if row["in_plan"] else "no" if row["left_out"] else ""
    return row["name"], use, key, row["default_model"] or "", row["source"] or "?"


def forget(
    name: Annotated[str, argument("NAME", "Provider, or the variable a key is stored as.")],
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
        raise UsageError(f"no stored key for {name}", hint=hint)
    for variable in gone:
        to_stderr(f"amplifier: removed the stored key {variable}")


def _variables(name: str) -> list[str]:
    logging.getLogger().addHandler(logging.NullHandler())
    plan = chosen_plan()
    provider = find_provider(plan, name)
    described = run_loop(describe(provider, resolver_for(plan, offline=True)))
    return list(described.info.credential_env_vars)


NameArgument = Annotated[
    str | None,
    argument("NAME", "Provider, as 'provider list' shows it. [default: the plan's first]"),
]
VerboseOption = Annotated[
    bool, option("-v, --verbose", "Show tracebacks and log messages of modules.")
]


Send = Callable[["Provider", "AppModuleSourceResolver", Renderer], Coroutine[Any, Any, str]]
"""Sends a request to a provider whose notices the renderer shows, and returns the text to print."""


def _print_answer(
    invocation: Invocation, name: str | None, request: Request, verbose: bool, send: Send
) -> None:
    """Find the provider, send a request, and print the text it returns.

    Shows what was logged, except what an error already reports.

    Raises:
        UsageError: Two providers are given.
        ConfigError: The provider is unknown.
        PlanError: The plan is invalid.
        Exception: The request failed.
    """
    if name is not None and request.provider is not None:
        raise UsageError("NAME and --provider are mutually exclusive")
    name = name or request.provider
    invocation.verbose = invocation.verbose or verbose
    invocation.stdout = invocation.resources.enter_context(claim_stdout())
    try:
        # A provider named on the command line is included even if its condition is not met.
        chosen = chosen_plan(request._replace(provider=name))
    except PlanError:
        if name is None:
            raise
        # Either the plan is invalid, which this reports, or it does not list the provider.
        chosen = chosen_plan(request)
    renderer = StderrNotices(quiet=False)
    logs = show_logs(renderer, verbose=invocation.verbose)
    provider, sources = find_provider(chosen, name), resolver_for(chosen)
    reported: list[str] = []
    try:
        invocation.stdout.write(run_loop(send(provider, sources, renderer)))
    except Exception as error:
        reported.append(str(error))
        raise
    finally:
        logs.show_held(reported)


_MODEL_COLUMNS = (
    Column("MODEL", "middle", least=20),
    Column("NAME", "end", drop=2),
    Column("CONTEXT", right=True),
    Column("OUTPUT", drop=1, right=True),
    Column("CAPABILITIES", "wrap", drop=3),
)


@takes_plan_options("profile", "plan", "provider")
def models(
    context: typer.Context,
    name: NameArgument = None,
    *,
    request: Request,
    output: OutputOption = "text",
    verbose: VerboseOption = False,
) -> None:
    """List the models a provider offers, with their limits in tokens where known.

    \b
      amplifier provider models
      amplifier provider models openai --output json

    Contacts the provider's service. Exit codes are those of 'provider test'.
    """
    invocation: Invocation = context.obj

    async def send(provider: Provider, sources: AppModuleSourceResolver, renderer: Renderer) -> str:
        listing = await models_of(provider, sources, renderer=renderer)
        if output == "json":
            return json_text([model.model_dump(mode="json") for model in listing]) + "\n"
        width = terminal_width(invocation.stdout.fd)
        lines = table(_MODEL_COLUMNS, [_model_cells(model) for model in listing], width)
        return "".join(f"{line}\n" for line in lines)

    _print_answer(invocation, name, request, verbose, send)


def _model_cells(model: ModelInfo) -> tuple[str, ...]:
    named = model.display_name if model.display_name != model.id else ""
    return (
        model.id,
        named,
        f"{model.context_window:,}" if model.context_window else "",
        f"{model.max_output_tokens:,}" if model.max_output_tokens else "",
        ", ".join(model.capabilities),
    )


@takes_plan_options("profile", "plan", "provider")
def request_short_answer(
    context: typer.Context,
    name: NameArgument = None,
    model: Annotated[
        str | None, option("-m, --model NAME", "Model to use. [default: the provider's]")
    ] = None,
    *,
    request: Request,
    timeout: Annotated[str, option("--timeout TIME", "Time limit: 90, 90s, 5m.")] = "2m",
    output: OutputOption = "text",
    verbose: VerboseOption = False,
) -> None:
    """Test a provider with a one-word request; it uses a few tokens and saves nothing.

    \b
      amplifier provider test
      amplifier provider test openai -m MODEL

    Exit codes: 0 it answered; 3 the provider cannot be loaded; 4 the key was rejected; 5 the
    request was rejected, for example because of the model; 75 the service is unreachable or busy,
    try again later; 78 the provider is not configured, for example has no key.
    """
    seconds = parse_duration(timeout)

    async def send(provider: Provider, sources: AppModuleSourceResolver, renderer: Renderer) -> str:
        answered = await ask(provider, sources, model=model, timeout=seconds, renderer=renderer)
        facts = _facts(provider.name, answered)
        return f"{json_text(facts) if output == 'json' else _text(facts)}\n"

    _print_answer(context.obj, name, request, verbose, send)


def _facts(name: str, answered: Answered) -> dict[str, Any]:
    return {
        "provider": name,
        "model": answered.model,
        "latency_ms": round(answered.seconds * 1000),
        "usage": {"input_tokens": answered.input_tokens, "output_tokens": answered.output_tokens},
        "cost_usd": None if answered.cost is None else str(answered.cost),
    }


def _text(facts: dict[str, Any]) -> str:
    usage = facts["usage"]
    line = f"{facts['provider']} answers: {facts['model']}, {facts['latency_ms']} ms"
    if usage["input_tokens"] is not None:
        line += f", {usage['input_tokens']} tokens in, {usage['output_tokens']} out"
    if facts["cost_usd"] is not None and float(facts["cost_usd"]):
        line += f", ${facts['cost_usd']}"
    return one_line(line)
