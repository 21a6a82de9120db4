"""The known name that a misspelt one was probably meant to be."""

from __future__ import annotations

from collections.abc import Iterable


def nearest(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """The known name most like `name`, whatever its case; None if none is like it.

    Args:
        name: The misspelt name.
        known: The names there are.
        cutoff: How alike they have to be, from 0 to 1.
    """
    # Only reached when something is already wrong, so no good run pays for the import.
    from difflib import get_close_matches

    by_lower = {one.lower(): one for one in known}
    near = get_close_matches(name.lower(), by_lower, n=1, cutoff=cutoff)
    return by_lower[near[0]] if near else None


def did_you_mean(name: str, known: Iterable[str], cutoff: float = 0.6) -> str | None:
    """`did you mean 'x'?` for the known name nearest to `name`, else None."""
    near = nearest(name, known, cutoff)
    return None if near is None else f"did you mean {near!r}?"
