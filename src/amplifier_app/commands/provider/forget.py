"""`amplifier provider forget`: remove a stored key."""

from __future__ import annotations

import logging
from typing import Annotated

import typer

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import KeyStore
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.plan_options import chosen_plan
from amplifier_app.runtime.provider_access import describe, find_provider
from amplifier_app.sources.plan_resolver import resolver_for

app = typer.Typer(add_completion=False, rich_markup_mode=None)


@app.command()
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
