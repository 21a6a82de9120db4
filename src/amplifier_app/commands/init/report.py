"""Reports what `init` and the first run have set up."""

from __future__ import annotations

import os
from pathlib import Path

from amplifier_app.base.keys import KeyStore
from amplifier_app.base.sanitize import for_terminal
from amplifier_app.base.stdio import to_stderr
from amplifier_app.commands.init.saving import Saved
from amplifier_app.commands.init.setup import Choice
from amplifier_app.commands.init.suggestions import suggestions


def report_saved(choice: Choice, saved: Saved) -> None:
    """Report what was saved, and where."""
    name = choice.provider.name
    if saved.stored is not None:
        where = "the keyring" if saved.stored.where == "keyring" else str(KeyStore().file)
        note = f" ({saved.stored.note})" if saved.stored.note else ""
        to_stderr(f"amplifier: stored the key of {name} in {where}{note}")
        variable = choice.offer.variable or ""
        if any(one.where == "environment" for one in choice.offer.credentials):
            to_stderr(
                f"amplifier: warning: {variable} is set and takes precedence; unset it to use the stored key"
            )
    if saved.changed:
        to_stderr(f"amplifier: {saved.file}: {name}: {', '.join(saved.changed)}")
    if not saved.changed and saved.stored is None:
        to_stderr("Nothing to change: it is already set up this way.")
    if saved.asked_first:
        to_stderr(f"amplifier: {name} is ready")
    else:
        hint = f"amplifier run --provider {name}"
        to_stderr(
            f"amplifier: warning: another provider is used by default; to use this one: {hint}"
        )


def show_suggestions(*, as_commands: bool) -> None:
    """Show three prompts to try here, or the commands that send them."""
    to_stderr("\nThree things to try here:")
    for prompt in suggestions(Path(os.getcwd())):
        to_stderr(for_terminal(f'  amplifier run "{prompt}"' if as_commands else f"  {prompt}"))
    to_stderr("")
