"""What the documents of one plan may cost together: bytes, values and expanded variables.

Limits of single documents would not be enough: a plan extends profiles, includes bundles and reads
agents, settings and text files. The limits are far above what plans contain.
"""

from __future__ import annotations

MAX_BYTES = 1024 * 1024
"""Of one document."""

MAX_TOTAL_BYTES = 16 * 1024 * 1024
MAX_DEPTH = 64
MAX_VALUES = 50_000
MAX_REPEATED = 1024 * 1024
"""Characters that aliases repeat: most readers of a plan look at each of them."""

MAX_NUMBER_LENGTH = 256
"""Characters of one number: parsing a long one takes quadratic time."""

MAX_EXPANDED = 4 * 1024 * 1024
"""Characters of all variables and their values."""

_VARIABLE_COST = 64
"""Characters that a variable counts in addition to its own."""

MAX_NESTED_VARIABLES = 16
MAX_PROBLEMS = 100
MAX_MESSAGE_LENGTH = 400


class Budget:
    """Counts what the documents of one plan have cost so far."""

    def __init__(self) -> None:
        self._bytes = 0
        self._values = 0
        self._repeated = 0
        self._expanded = 0

    def spend_bytes(self, count: int) -> bool:
        """Count what was read; False if it is too much."""
        self._bytes += count
        return self._bytes <= MAX_TOTAL_BYTES

    def spend_values(self, count: int) -> bool:
        """Count values, including those that an alias repeats; False if they are too many."""
        self._values += count
        return self._values <= MAX_VALUES

    def spend_repeated(self, count: int) -> bool:
        """Count the characters that an alias repeats; False if they are too many."""
        self._repeated += count
        return self._repeated <= MAX_REPEATED

    def spend_variable(self, count: int) -> bool:
        """Count the characters of a variable and its value; False if they are too many."""
        self._expanded += count + _VARIABLE_COST
        return self._expanded <= MAX_EXPANDED
