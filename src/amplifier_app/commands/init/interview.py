"""Asking a person which provider, key, address and model. Questions go to stderr.

Keys are read without an echo. Ctrl-C and Ctrl-D end it at any question, and nothing is kept.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Callable, Coroutine, Sequence
from typing import TYPE_CHECKING, Any, Literal

from amplifier_app.base.errors import AppError
from amplifier_app.base.keys import problem_of_key
from amplifier_app.base.outcome import Ending, outcome_of
from amplifier_app.base.sanitize import for_terminal, one_line
from amplifier_app.base.stdio import to_stderr
from amplifier_app.chat.ask import choose
from amplifier_app.commands.init.setup import (
    MODEL_FIELDS,
    Choice,
    Given,
    Offer,
    problem_of_address,
    try_out,
    use_key,
    user_plan,
)
from amplifier_app.runtime.observer import Renderer
from amplifier_app.runtime.provider_access import models
from amplifier_app.sources.plan_resolver import resolver_for

if TYPE_CHECKING:
    from amplifier_core.models import ConfigField

_SHOWN_MODELS = 20
_DEFAULT = "-"
"""What is typed for taking a setting away."""

_AFTER_FAILURE: dict[str, Literal["again", "keep", "stop"]] = {
    "try again": "again",
    "save anyway": "keep",
    "quit": "stop",
}


class Interview:
    """One conversation with a person at the terminal.

    Args:
        run: Runs a coroutine to its end and gives its result.
        renderer: What shows notices of providers.
        test_seconds: How long a test may take; None for neither a test nor a list of models.
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

    def hold(self, offers: Sequence[Offer], given: Given) -> Choice | None:
        """Ask for what is not given, and test it.

        Args:
            offers: The providers to choose from; one alone is not asked for.
            given: What is not to be asked for.

        Returns:
            What to keep; None if nothing is to be kept.

        Raises:
            KeyboardInterrupt: The person wants no more.
            UsageError: The provider cannot be told what is given.
        """
        offer = offers[0] if len(offers) == 1 else self._provider(offers)
        choice = given.choice(offer)
        choice = self._fields(choice, skip={*choice.changes})
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
        while True:
            answer = self._line(f"\nProvider [{names[0]}]: ") or names[0]
            chosen = choose(answer, names)
            if chosen is not None:
                return offers[names.index(chosen)]
            to_stderr(f"Give a number from 1 to {len(names)}, or a name.")

    def _fields(self, choice: Choice, skip: set[str]) -> Choice:
        """Ask for the key, then for all else the provider can be told, the model last."""
        offer = choice.offer
        if offer.variable is not None:
            choice = choice._replace(key=self._key(offer, choice.key))
        use_key(choice)
        for field in offer.info.config_fields:
            asked = field.id not in {*MODEL_FIELDS, *skip} and field.field_type != "secret"
            if asked and _applies(field, choice):
                choice = choice.with_changes(self._setting(choice, field))
        if offer.model_field not in skip and offer.field(offer.model_field) is not None:
            choice = choice.with_changes(self._model(choice))
        return choice

    def _key(self, offer: Offer, typed: str | None) -> str | None:
        """A new key; None keeps the one there is, or does without."""
        prompt = one_line(offer.secret.prompt if offer.secret is not None else "Key", 60)
        if typed:
            told = "Enter for the one you gave"
        elif offer.credentials:
            told = f"{offer.credentials[0]}; Enter goes on with it"
        elif offer.needs_key:
            told = "not shown while you type or paste it"
        else:
            told = "not shown; Enter if the server needs none"
        while True:
            key = self._hidden(f"{prompt} ({told}): ")
            if not key and (typed or not offer.needs_key):
                return typed
            problem = problem_of_key(key)
            if problem is None:
                return key
            to_stderr(f"That cannot be: {problem}.")

    def _setting(self, choice: Choice, field: ConfigField) -> dict[str, Any]:
        """One setting, if it is to change."""
        current = choice.provider.config.get(field.id)
        variable = field.env_var or ""
        if current is not None:
            told = f"{current}; '{_DEFAULT}' for the default"
        elif os.environ.get(variable):
            told = f"{os.environ[variable]}, by {variable}"
        else:
            told = field.default or "none"
        prompt = one_line(field.prompt, 80)
        if field.field_type == "choice" and field.choices:
            prompt = f"{prompt} ({one_line(', '.join(field.choices))})"
        while True:
            answer = self._line(f"{prompt} [{one_line(told)}]: ")
            if not answer or answer == str(current):
                return {}
            if answer == _DEFAULT:
                return {field.id: None}
            value = _value(field, answer)
            problem = _problem(field, value)
            if problem is None:
                return {field.id: value}
            to_stderr(f"That cannot be: {one_line(problem)}.")

    def _model(self, choice: Choice) -> dict[str, Any]:
        """The model, if it is to change."""
        name = choice.offer.model_field
        current = choice.provider.config.get(name)
        names = self._models(choice)
        shown = names[:_SHOWN_MODELS]
        default = choice.offer.info.defaults.get("model")
        if "base_url" in choice.changes:
            # That default is another service's.
            default = names[0] if names else None
        for number, model in enumerate(shown, 1):
            to_stderr(f"  [{number}] {one_line(model)}")
        if len(names) > len(shown):
            to_stderr(f"  … and {len(names) - len(shown)} more")
        told = f"{current}; '{_DEFAULT}' for the default" if current else default
        while True:
            answer = self._line(f"Model [{one_line(str(told or 'the first it lists'))}]: ")
            if not answer or answer == current:
                return {}
            if answer == _DEFAULT:
                return {name: None}
            if answer.isdecimal() and 0 < int(answer) <= len(shown):
                answer = shown[int(answer) - 1]
            if not any(character.isspace() for character in answer):
                return {name: answer}
            to_stderr("That cannot be: no model has white space in its name.")

    def _models(self, choice: Choice) -> list[str]:
        if self._seconds is None:
            return []
        sources = resolver_for(user_plan())
        try:
            found = self._run(models(choice.provider, sources, renderer=self._renderer))
        # The test will meet the same, and leaves the choice of what to do about it.
        except Exception as error:
            to_stderr(f"Its models cannot be listed: {one_line(outcome_of(error).message)}")
            return []
        return [model.id for model in found]

    # -- the test ----------------------------------------------------------------------------

    def _test(self, choice: Choice) -> Literal["again", "keep", "stop"]:
        """Ask the provider, and the person if it does not answer."""
        if self._seconds is None:
            return "keep"
        to_stderr(f"Asking {choice.provider.name} for one word …")
        try:
            answered = self._run(try_out(choice, self._seconds, self._renderer))
        # Whatever stands in the way is told, and what to do about it is the person's choice.
        except Exception as error:
            to_stderr(for_terminal(told_failure(error)))
        else:
            milliseconds = round(answered.seconds * 1000)
            to_stderr(f"It answers: {one_line(str(answered.model))}, {milliseconds} ms.")
            return "keep"
        options = list(_AFTER_FAILURE)
        listed = "  ".join(f"[{number}] {text}" for number, text in enumerate(options, 1))
        while True:
            chosen = choose(self._line(f"{listed}: "), options)
            if chosen is not None:
                return _AFTER_FAILURE[chosen]

    # -- the terminal ------------------------------------------------------------------------

    def _line(self, question: str) -> str:
        with contextlib.suppress(OSError, ValueError):
            sys.stderr.write(for_terminal(question))
            sys.stderr.flush()
        line = sys.stdin.readline()
        if not line:
            to_stderr("")
            raise KeyboardInterrupt
        return clean(line)

    def _hidden(self, question: str) -> str:
        from getpass import getpass

        try:
            return clean(getpass(for_terminal(question), stream=sys.stderr))
        except EOFError:
            to_stderr("")
            raise KeyboardInterrupt from None


def clean(text: str) -> str:
    """A line as it was typed or pasted, without what came along around it."""
    for mark in ("\x1b[200~", "\x1b[201~"):
        text = text.replace(mark, "")
    return text.strip()


def told_failure(error: BaseException) -> str:
    """A failed test, told so that it is clear where to look."""
    outcome = outcome_of(error)
    where = {
        Ending.AUTHENTICATION: "The key is not accepted",
        Ending.UNAVAILABLE: "It cannot be reached, or is busy",
        Ending.CONFIGURATION: "It is not configured as it needs to be",
        Ending.MODULE: "It cannot be loaded",
        Ending.PROVIDER: "It refuses the request; is the name of the model right?",
    }.get(outcome.ending, "The test failed")
    hint = f"\n  {outcome.hint}" if outcome.hint and isinstance(error, AppError) else ""
    return f"{where}: {outcome.message}{hint}"


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
        return "say yes or no"
    if field.field_type == "choice" and field.choices and value not in field.choices:
        return f"it is one of {', '.join(field.choices)}"
    return problem_of_address(str(value)) if field.id == "base_url" else None
