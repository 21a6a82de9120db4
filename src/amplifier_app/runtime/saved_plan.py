"""The plan a session began with, and the secrets in it that were not saved."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

from amplifier_app.base.errors import ConfigError, SessionError
from amplifier_app.plan.masking import MASK
from amplifier_app.plan.nodes import ListNode, MapNode, Node, text_of
from amplifier_app.plan.overrides import apply_sets, parse_sets
from amplifier_app.plan.problems import Problems
from amplifier_app.plan.structure import entry_key
from amplifier_app.plan.yaml_reader import read_yaml
from amplifier_app.sessions.store import SessionStore


def saved_plan(session_id: str) -> Path:
    """The plan a session ran with, so that it goes on as it began.

    Raises:
        SessionError: It is missing or empty.
    """
    path = SessionStore().find(session_id) / "plan.yaml"
    try:
        size = path.stat().st_size
    except OSError:
        size = None
    if not size:
        state = "is missing" if size is None else "is empty"
        raise SessionError(
            f"the plan of session {session_id} {state}: {path}",
            hint="Restore the file, or specify what to resume with: --plan FILE or --profile NAME",
        )
    return path


def with_secrets(
    plan: Path, session_id: str, sets: tuple[str, ...], ask: Callable[[str], str] | None
) -> tuple[str, ...]:
    """The assignments of `--set`, with those that give the plan its secrets back.

    Args:
        plan: The saved plan.
        session_id: Its session.
        sets: Assignments that were given.
        ask: Reads a secret from a person; None if there is nobody to ask.

    Raises:
        ConfigError: Secrets are missing and were not given.
    """
    data = plan.read_bytes()
    # Before it is read as a plan: an address is no longer one without its password.
    if MASK.encode() not in data:
        return sets
    problems = Problems()
    tree = read_yaml(data, str(plan), problems)
    if not isinstance(tree, MapNode):
        return sets  # What is wrong with it is reported when it is read as a plan.
    missing = list(_masked(apply_sets(tree, parse_sets(sets), problems), ()))
    if not missing:
        return sets
    given: list[str] = []
    for path, text in missing if ask is not None else ():
        was = "" if text == MASK else f", which was {text}"
        answer = ask(f"{path}{was} (secrets are not saved; input is hidden): ") if ask else ""
        if not answer:
            break
        # As YAML in quotes: a secret of digits only is text as well.
        given.append(f"{path}={json.dumps(answer)}")
    if len(given) < len(missing):
        raise _missing_secrets(session_id, [path for path, _ in missing])
    return (*sets, *given)


def _missing_secrets(session_id: str, paths: Sequence[str]) -> ConfigError:
    options = " ".join(f'--set {path}="$SECRET"' for path in paths)
    return ConfigError(
        f"the plan of session {session_id} had a secret in it, which was not saved: "
        f"{', '.join(paths)}",
        hint=f"Give it again: amplifier run --resume {session_id} {options}\n"
        "Or resume with the plan itself: --plan FILE. A plan that says ${VARIABLE} instead of the "
        "secret can be resumed without either.",
    )


def _masked(node: Node, path: tuple[str, ...]) -> Iterator[tuple[str, str]]:
    """Addresses of what was masked in a plan, with what is left of it."""
    if isinstance(node, MapNode):
        for key, value in node.items.items():
            # An instruction is saved as it is, and may write of masks.
            if key != "instruction":
                yield from _masked(value, (*path, key))
    elif isinstance(node, ListNode):
        keys = [entry_key(entry) for entry in node.items]
        for index, entry in enumerate(node.items):
            key = keys[index]
            name = key if key is not None and keys.count(key) == 1 else str(index)
            yield from _masked(entry, (*path, name))
    elif MASK in (text := text_of(node) or ""):
        yield ".".join(path), text
