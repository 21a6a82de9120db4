"""Checks of the providers and their keys; uses the network only with --online."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import KeyStore, problem_of_key
from amplifier_app.base.outcome import to_outcome
from amplifier_app.commands.doctor.check import Check
from amplifier_app.commands.doctor.documents import trusted_folder
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.runtime.provider_access import (
    all_providers,
    ask,
    describe,
    find_credentials,
    find_provider,
)
from amplifier_app.sources.loading import Fetching, load
from amplifier_app.sources.resolver import resolver_for

if TYPE_CHECKING:
    from amplifier_app.base.keys import Where
    from amplifier_app.plan import ResolvedPlan
    from amplifier_app.runtime.provider_access import Provider
    from amplifier_app.sources.resolver import AppModuleSourceResolver

_ONLINE_SECONDS = 60.0


def providers() -> Iterator[Check]:
    """The default provider, and where each provider's key comes from."""
    plan = _plan()
    if plan is None:
        return
    try:
        stored = KeyStore().names()
    except ConfigError:
        # The check of the keys reports this.
        stored = {}
    sources = resolver_for(plan, offline=True)
    known = all_providers(plan)
    for provider in known:
        yield from run_loop(_provider(provider, sources, stored))
    in_plan = [provider.name for provider in known if provider.in_plan]
    if in_plan == ["local"]:
        message = "only the demo model is available"
        yield Check("providers", "warn", message, "set up a provider: amplifier init")
    elif not in_plan:
        reasons = "; ".join(plan.notes)
        message = f"no provider is available: {reasons or 'the profile lists none'}"
        yield Check("providers", "fail", message, "set one up: amplifier init")


async def _provider(
    provider: Provider, sources: AppModuleSourceResolver, stored: dict[str, Where]
) -> list[Check]:
    try:
        info, ready = await describe(provider, sources)
    # A provider may be third-party code.
    except Exception as error:
        state = "fail" if provider.in_plan else "warn"
        fix = f"for details run: amplifier provider test {provider.name}"
        return [Check(provider.name, state, f"cannot be mounted: {error}", fix)]
    credentials = find_credentials(info, provider, stored)
    if credentials:
        message = "; ".join(map(str, credentials))
    elif ready:
        message = "needs no key"
    else:
        message = f"no key ({' or '.join(info.credential_env_vars)})"
    checks = [Check(provider.name, "ok", message)]
    if provider.in_plan and not ready and not credentials:
        checks = [Check(provider.name, "warn", message, "store one: amplifier init")]
    for credential in credentials:
        value = os.environ.get(credential.variable, "") if credential.where == "environment" else ""
        problem = _problem(value) if value else None
        if problem:
            fix = f"set {credential.variable} to the key without anything else"
            checks.append(Check(provider.name, "warn", f"{credential.variable}: {problem}", fix))
    return checks


def _problem(value: str) -> str | None:
    if value[:1] in "\"'" or value[-1:] in "\"'":
        return "the key is in quotes"
    return problem_of_key(value.strip())


def online() -> Iterator[Check]:
    """Test the default provider with a one-word request."""
    plan = _plan()
    if plan is None:
        return
    try:
        provider = find_provider(plan, None)
        answered = run_loop(ask(provider, resolver_for(plan), timeout=_ONLINE_SECONDS))
    # Any failure is reported as its outcome.
    except Exception as error:
        outcome = to_outcome(error)
        fix = (
            outcome.hint
            or f"for details run: amplifier provider test (exit code {outcome.exit_code})"
        )
        yield Check("online", "fail", outcome.message, fix)
        return
    milliseconds = round(answered.seconds * 1000)
    yield Check("online", "ok", f"{provider.name} answers: {answered.model}, {milliseconds} ms")


def _plan() -> ResolvedPlan | None:
    """The plan of a run without options; None if it is invalid, which other checks report."""
    try:
        return load(project=trusted_folder(), fetching=Fetching(offline=True))
    except ConfigError:
        return None
