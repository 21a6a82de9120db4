"""The known name that a misspelt one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable

_CUTOFF = 0.65


def nearest(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """The known name most similar to `name`, ignoring case; None if none is similar.

    Args:
        name: The misspelt name.
        known: The existing names.
        cutoff: How similar they must be, from 0 to 1.
    """
    # Only reached after an error, so that other runs do not pay for the import.
    from difflib import get_close_matches

    # The dashes that all options begin with do not make them alike.
    wanted, letters = _compared(name), sorted(_compared(name))
    by_compared = {_compared(one): one for one in known}
    near = [
        one
        for one in get_close_matches(wanted, by_compared, cutoff=cutoff)
        if _rest_is_similar(wanted, one)
    ]
    # Most often two letters were exchanged: `--modle` is `--model`, and not `--mode`.
    near.sort(key=lambda one: sorted(one) != letters)
    return by_compared[near[0]] if near else None


def _rest_is_similar(name: str, known: str) -> bool:
    """Compare what follows a common first word, such as `tool-`: it does not make names alike."""
    from difflib import SequenceMatcher

    (first, dash, rest), (other, _, others) = name.partition("-"), known.partition("-")
    if not dash or first != other or rest.startswith(others) or others.startswith(rest):
        return True
    return SequenceMatcher(None, rest, others).ratio() >= _CUTOFF


def _compared(name: str) -> str:
    return name.lower().lstrip("-")


def did_you_mean(name: str, known: Iterable[str], cutoff: float = _CUTOFF) -> str | None:
    """`did you mean 'x'?` for the known name nearest to `name`, else None."""
    near = nearest(name, known, cutoff)
    return None if near is None else f"did you mean {near!r}?"
