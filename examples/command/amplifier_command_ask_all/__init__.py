"""Two commands for `amplifier`: `ask-all`, and `plan digest` in a group that exists."""

import asyncio
from typing import Annotated

import typer

from amplifier_app import api

ask_all = typer.Typer(add_completion=False, rich_markup_mode=None)
digest = typer.Typer(add_completion=False, rich_markup_mode=None)


@ask_all.command()
def ask_all_profiles(prompt: str, profiles: Annotated[list[str], typer.Argument()]) -> None:
    """Send a prompt to several profiles, one after the other."""
    for profile in profiles:
        answer = asyncio.run(api.run(api.load_plan(profile), prompt))
        print(f"{profile}: {answer.text if answer.is_ok else answer.error}")


@digest.command()
def print_digest(profile: str) -> None:
    """Print the digest of a plan, which results contain, too."""
    print(api.load_plan(profile).digest)
