"""The prompts for the provider, key, address and model, on stderr.

Keys are read without echo. Ctrl-C or Ctrl-D at any prompt ends the setup without saving.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Sequence, Set
from getpass import getpass
from typing import TYPE_CHECKING, Any, Literal

from amplifier_app.base.errors import AppError, UsageError
from amplifier_app.base.keys import KeyStore, problem_of_key
from amplifier_app.base.outcome import Ending, to_outcome
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.chat.ask import choose
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.init.setup import (
    MODEL_FIELDS,
    Choice,
    Given,
    Offer,
    build_offer,
    has_own_mode,
    offers,
    problem_of_address,
    save_mode,
    try_out,
    use_key,
    user_plan,
)
from amplifier_app.plan.model import ResolvedPlan
from amplifier_app.render.text import StderrNotices
from amplifier_app.runtime.approvals import MEANINGS
from amplifier_app.runtime.observers.notices import show_logs
from amplifier_app.runtime.observers.observer import Renderer
from amplifier_app.runtime.provider_access import NotMounted, find_provider, models
from amplifier_app.sources.resolver import resolver_for
from amplifier_core.module_sources import MISCONFIGURED

if TYPE_CHECKING:
    from amplifier_core.models import ConfigField

_SHOWN_MODELS = 20
_DEFAULT = "-"
"""The answer that removes a setting."""

_AFTER_FAILURE: dict[str, Literal["again", "keep", "stop"]] = {
    "try again": "again",
    "save anyway": "keep",
    "quit": "stop",
}


class Interview:
    """The setup dialogue on a terminal.

    Args:
        run: Runs a coroutine to its end and returns its result.
        renderer: Shows the providers' notices.
        test_seconds: Time limit of the test; None skips the test and the list of models.
    """

    def __init__(
        self,
        run: Callable[[Coroutine[Any, Any, Any]], Any],
        renderer: Renderer,
        test_seconds: float | None,
    ) -> None:
        self._run = run
        self._renderer = renderer
        self._seconds = test_seconds

    def hold(
        self, offers: Sequence[Offer], values: Given, skip: Set[str] = frozenset()
    ) -> Choice | None:
        """Prompt for everything not given, and test the result.

        Args:
            offers: The providers to choose from; a single one is taken without asking.
            values: Values that are not asked for.
            skip: More settings that are not asked for, unless the test fails.

        Returns:
            The choice to save; None to save nothing.

        Raises:
            KeyboardInterrupt: The user cancelled.
            UsageError: The provider does not take a given value.
        """
        offer = offers[0] if len(offers) == 1 else self._provider(offers)
        choice = values.choice(offer)
        choice = self._fields(choice, skip={*choice.changes, *skip})
        while True:
            verdict = self._test(choice)
            if verdict != "again":
                return choice if verdict == "keep" else None
            choice = self._fields(choice, skip=set())

    # -- questions ---------------------------------------------------------------------------

    def _provider(self, offers: Sequence[Offer]) -> Offer:
        names = [offer.provider.name for offer in offers]
        titles = [one_line(offer.info.display_name, 30) for offer in offers]
        widths = max(map(len, names)), max(map(len, titles))
        to_stderr("Which provider?\n")
        for number, (name, title, offer) in enumerate(zip(names, titles, offers, strict=True), 1):
            facts = f"{name.ljust(widths[0])}  {title.ljust(widths[1])}  {offer.found}"
            to_stderr(for_terminal(f"  [{number}] {facts}").rstrip())
        chosen = self.pick(f"\nProvider [{names[0]}]: ", names, default=names[0])
        return offers[names.index(chosen)]

    def _fields(self, choice: Choice, skip: set[str]) -> Choice:
        """Prompt for the key, then the provider's other settings, the model last."""
        offer = choice.offer
        if offer.variable is not None:
            choice = choice._replace(key=self._key(choice))
        lacked_key = choice.lacks_key
        for field in offer.info.config_fields:
            asked = field.id not in {*MODEL_FIELDS, *skip} and field.field_type != "secret"
            if asked and _applies(field, choice):
                choice = choice.with_changes(self._setting(choice, field))
        if choice.lacks_key and not lacked_key:
            choice = choice._replace(key=self._key(choice))
        use_key(choice)
        if offer.model_field not in skip and offer.field(offer.model_field) is not None:
            choice = choice.with_changes(self._model(choice))
        return choice

    def _key(self, choice: Choice) -> str | None:
        """A new key; None keeps the current one, or continues without a key."""
        offer, typed = choice.offer, choice.key
        prompt = one_line(offer.secret.prompt if offer.secret is not None else "Key", 60)
        if choice.has_own_address:
            prompt = "API key"
        if typed:
            note = "press Enter for the one you gave"
        elif offer.credentials and not choice.lacks_key:
            note = f"{offer.credentials[0]}; press Enter to keep it"
        elif offer.needs_key:
            note = "input is hidden"
        else:
            note = "input is hidden; press Enter if the server needs no key"
        while True:
            key = self._ask_hidden(f"{prompt} ({note}): ")
            if not key and (typed or not offer.needs_key):
                return typed
            problem = problem_of_key(key)
            if problem is None:
                return key
            to_stderr(f"Invalid key: {problem}.")

    def _setting(self, choice: Choice, field: ConfigField) -> dict[str, Any]:
        """The change of one setting; empty to keep it."""
        current = choice.provider.config.get(field.id)
        variable = field.env_var or ""
        if current is not None:
            hint = f"{current}; '{_DEFAULT}' for the default"
        elif os.environ.get(variable):
            hint = f"{os.environ[variable]}, from {variable}"
        elif field.id == "base_url" and choice.offer.stored is not None:
            hint = f"{choice.offer.stored.url}; '{_DEFAULT}' for the default"
        else:
            hint = field.default or "none"
        prompt = one_line(field.prompt, 80)
        if field.field_type == "choice" and field.choices:
            prompt = f"{prompt} ({one_line(', '.join(field.choices))})"
        while True:
            answer = self.line(f"{prompt} [{one_line(hint)}]: ")
            if not answer or answer == str(current):
                return {}
            if answer == _DEFAULT:
                return {field.id: None}
            value = _value(field, answer)
            problem = _problem(field, value)
            if problem is None:
                return {field.id: value}
            to_stderr(f"Invalid value: {one_line(problem)}.")

    def _model(self, choice: Choice) -> dict[str, Any]:
        """The change of the model; empty to keep the current one."""
        name = choice.offer.model_field
        current = choice.provider.config.get(name)
        names = self._models(choice)
        choices = names[:_SHOWN_MODELS]
        default = choice.offer.info.defaults.get("model")
        if choice.has_own_address and default not in names:
            # The default belongs to another service.
            default = names[0] if names else None
        for number, model in enumerate(choices, 1):
            to_stderr(f"  [{number}] {one_line(model)}")
        if len(names) > len(choices):
            to_stderr(f"  … and {len(names) - len(choices)} more")
        note = f"{current}; '{_DEFAULT}' for the default" if current else default
        while True:
            answer = self.line(f"Model [{one_line(str(note or 'chosen by the provider'))}]: ")
            if not answer and default and not current:
                # The model shown is the one used, even if the provider's default changes.
                return {name: default}
            if not answer or answer == current:
                return {}
            if answer == _DEFAULT:
                return {name: None}
            if answer.isdecimal() and 0 < int(answer) <= len(choices):
                answer = choices[int(answer) - 1]
            if not any(character.isspace() for character in answer):
                return {name: answer}
            to_stderr("Model names cannot contain spaces.")

    def _models(self, choice: Choice) -> list[str]:
        if self._seconds is None:
            return []
        sources = resolver_for(user_plan())
        try:
            listing = self._run(models(choice.provider, sources, renderer=self._renderer))
        # The test will fail in the same way and then offer what to do.
        except Exception as error:
            to_stderr(f"Cannot list the models: {one_line(to_outcome(error).message)}")
            return []
        return [model.id for model in listing]

    # -- the test ----------------------------------------------------------------------------

    def _test(self, choice: Choice) -> Literal["again", "keep", "stop"]:
        """Test the provider; if that fails, ask what to do."""
        if self._seconds is None:
            return "keep"
        name = "the server" if choice.has_own_address else choice.offer.info.display_name
        self._write(f"Testing {one_line(name, 30)} … ")
        try:
            answered = self._run(try_out(choice, self._seconds, self._renderer))
        # Any failure is shown, and the user chooses what to do.
        except Exception as error:
            to_stderr(f"failed.\n{for_terminal(describe_failure(error))}")
        else:
            milliseconds = round(answered.seconds * 1000)
            to_stderr(f"works ({one_line(str(answered.model))}, {milliseconds} ms).")
            return "keep"
        listed = "  ".join(f"[{number}] {text}" for number, text in enumerate(_AFTER_FAILURE, 1))
        return _AFTER_FAILURE[self.pick(f"{listed}: ", list(_AFTER_FAILURE), hint="")]

    # -- the terminal ------------------------------------------------------------------------

    def _write(self, text: str) -> None:
        """Write to stderr without ending the line."""
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(for_terminal(text))
            sys.stderr.flush()

    def line(self, question: str) -> str:
        """The answer to a question.

        Raises:
            KeyboardInterrupt: The user cancelled.
        """
        self._write(question)
        try:
            line = sys.stdin.readline()
        except KeyboardInterrupt:
            line = ""
        if not line:
            to_stderr("")
            raise KeyboardInterrupt
        return clean(line)

    def pick(
        self,
        question: str,
        options: list[str],
        *,
        default: str = "",
        hint: str = "Enter a number from 1 to {}, or a name.",
    ) -> str:
        """The chosen one of some options, by its number or the beginning of its name.

        Args:
            question: The question.
            options: The options.
            default: The answer to an empty line.
            hint: Shown after an answer that is none of them, with their number.

        Raises:
            KeyboardInterrupt: The user cancelled.
        """
        while (chosen := choose(self.line(question) or default, options)) is None:
            if hint:
                to_stderr(hint.format(len(options)))
        return chosen

    def _ask_hidden(self, question: str) -> str:
        try:
            return clean(getpass(for_terminal(question), stream=sys.stderr))
        except (EOFError, KeyboardInterrupt):
            to_stderr("")
            raise KeyboardInterrupt from None


def clean(text: str) -> str:
    """A typed or pasted line without surrounding white space and paste marks."""
    for mark in ("\x1b[200~", "\x1b[201~"):
        text = text.replace(mark, "")
    return text.strip()


def describe_failure(error: BaseException) -> str:
    """A failed test as a message that shows where to look."""
    outcome = to_outcome(error)
    where = {
        Ending.AUTHENTICATION: "The key was rejected",
        Ending.UNAVAILABLE: "The service is unreachable or busy",
        Ending.CONFIGURATION: "The provider is not configured correctly",
        Ending.MODULE: "The provider cannot be loaded",
        Ending.PROVIDER: "The request was rejected; check the model name",
    }.get(outcome.ending, "The test failed")
    hint = f"\n  {outcome.hint}" if outcome.hint and isinstance(error, AppError) else ""
    # A message on the configuration repeats the beginning, with the module's id.
    return f"{where}: {outcome.message.rpartition(MISCONFIGURED)[2]}{hint}"


def _applies(field: ConfigField, choice: Choice) -> bool:
    config = choice.provider.config
    return all(str(config.get(name)) == value for name, value in (field.show_when or {}).items())


def _value(field: ConfigField, answer: str) -> str | bool | None:
    if field.field_type != "boolean":
        return answer
    words = {"y": True, "yes": True, "true": True, "n": False, "no": False, "false": False}
    return words.get(answer.lower())


def _problem(field: ConfigField, value: str | bool | None) -> str | None:
    if value is None:
        return "enter yes or no"
    if field.field_type == "choice" and field.choices and value not in field.choices:
        return f"expected one of {', '.join(field.choices)}"
    return problem_of_address(str(value)) if field.id == "base_url" else None


HOW_TO_PIPE = 'Pipe it in: echo "$KEY" | amplifier init --provider {} --key-stdin'


def choose_provider(
    name: str | None, values: Given, *, asking: bool, seconds: float | None, verbose: bool
) -> Choice | None:
    """The provider to set up; None if the person gives up.

    Args:
        name: The requested provider; None to offer all.
        values: What the options say about it.
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
        offered = [run_loop(build_offer(find_provider(plan, name), plan, stored))]
    if not asking:
        return _without_asking(values.choice(offered[0]), seconds, renderer)
    return Interview(run_loop, renderer, seconds).hold(offered, values)


def ask_mode() -> None:
    """Ask, unless it is set already, which tool calls need approval, and save it if it is not the usual mode."""
    if has_own_mode():
        return
    to_stderr(
        "\nWhat may the agent do without asking you? /mode and --mode change it at any time.\n"
    )
    width = max(map(len, MEANINGS))
    for number, (mode, meaning) in enumerate(MEANINGS.items(), 1):
        to_stderr(f"  [{number}] {mode.ljust(width)}  {meaning}")
    interview = Interview(run_loop, StderrNotices(quiet=False), None)
    with contextlib.suppress(KeyboardInterrupt):  # the provider is set up
        mode = interview.pick("\nMode [ask]: ", [*MEANINGS], default="ask")
        if mode != "ask":
            to_stderr(f"amplifier: {save_mode(mode)}: mode {mode}")


def _without_asking(choice: Choice, seconds: float | None, renderer: Renderer) -> Choice:
    """The choice as the options give it, tested.

    Raises:
        UsageError: The key is missing.
        Exception: The test failed.
    """
    offer = choice.offer
    how = f"{HOW_TO_PIPE.format(offer.provider.name)}; or set {offer.variable}."
    if choice.lacks_key and not choice.has_own_address and offer.stored is not None:
        message = f"the stored {offer.variable} is for {offer.stored.url}, not for {choice.address}"
        # Without the option, the new key would be for the address of the stored one.
        raise UsageError(message, hint=how.replace("--key-stdin", "--base-url '' --key-stdin"))
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
        if key == (provider.instance_id or provider.module):
            model = offer.info.defaults.get("model")
            if provider.name == "local":
                used = f"the built-in demo model ({model}); no key needed"
            else:
                used = f"{provider.name} ({model})" if model else provider.name
                used = f"{used}: {offer.found}"
            to_stderr(f"By default `amplifier run` currently uses {used}.\n")
