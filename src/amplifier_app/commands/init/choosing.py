"""Choose the provider of `amplifier init`: by asking for it, or from the options."""

from __future__ import annotations

from collections.abc import Sequence

from amplifier_app.base.errors import UsageError
from amplifier_app.base.keys import KeyStore
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.init.interview import Interview
from amplifier_app.commands.init.setup import (
    Choice,
    Given,
    Offer,
    offer_of,
    offers,
    try_out,
    user_plan,
)
from amplifier_app.plan import ResolvedPlan
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime.observers.log_notices import show_logs
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.provider_access import NotMounted, find_provider

HOW_TO_PIPE = 'Pipe it in: echo "$KEY" | amplifier init --provider {} --key-stdin'


def choose_provider(
    name: str | None, given: Given, *, asking: bool, seconds: float | None, verbose: bool
) -> Choice | None:
    """The provider to set up; None if the person gives up.

    Args:
        name: The requested provider; None to offer all.
        given: What the options say about it.
        asking: Whether there is someone to ask.
        seconds: Time limit of the test; None for no test.
        verbose: Whether to show the log messages of modules.

    Raises:
        UsageError: Something is missing, and there is no one to ask.
        Exception: The test failed.
    """
    renderer = StderrNotices(quiet=False)
    # Log messages of modules without a key are reported below in other words.
    show_logs(renderer, verbose=verbose)
    plan, stored = user_plan(), KeyStore().names()
    if name is None:
        offered = run_loop(offers(plan, stored))
        _show_current(offered, plan)
    else:
        offered = [run_loop(offer_of(find_provider(plan, name), plan, stored))]
    if not asking:
        return _without_asking(given.choice(offered[0]), seconds, renderer)
    return Interview(run_loop, renderer, seconds).hold(offered, given)


def _without_asking(choice: Choice, seconds: float | None, renderer: Renderer) -> Choice:
    """The choice as the options give it, tested.

    Raises:
        UsageError: The key is missing.
        Exception: The test failed.
    """
    offer = choice.offer
    how = f"{HOW_TO_PIPE.format(offer.provider.name)}; or set {offer.variable}."
    if offer.needs_key and choice.key is None and not choice.changes.get("base_url"):
        message = f"no key given for {offer.provider.name}"
        raise UsageError(message, hint=how)
    if seconds is not None:
        try:
            run_loop(try_out(choice, seconds, renderer))
        except NotMounted as error:
            raise UsageError(error.message, hint=how if offer.variable else None) from error
        except Exception:
            to_stderr("amplifier: the test failed, so nothing was saved; --no-test saves anyway")
            raise
    return choice


def _show_current(offers: Sequence[Offer], plan: ResolvedPlan) -> None:
    """Show which provider a run uses now."""
    key = plan.default_provider
    for offer in offers:
        provider = offer.provider
        if key in (provider.instance_id or provider.module,):
            model = offer.info.defaults.get("model")
            if provider.name == "local":
                used = f"the built-in demo model ({model}); no key needed"
            else:
                used = f"{provider.name} ({model})" if model else provider.name
                used = f"{used}: {offer.found}"
            to_stderr(f"By default `amplifier run` currently uses {used}.\n")
