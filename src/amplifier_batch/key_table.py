"""A table of millions of keys in little memory."""

from __future__ import annotations

from array import array

_DIGEST = (1 << 64) - 1


class KeyTable:
    """Maps strings to small numbers in about 25 bytes for each, where a dict needs 150.

    It stores a hash of 64 bits instead of the key. Two of a million keys have the same one with a chance of 3 in 100
    million, and are then the same key; readers of an input report that before any row runs.
    """

    def __init__(self) -> None:
        self._digests = array("Q", bytes(8 << 10))
        self._values = array("I", bytes(4 << 10))
        self._size = 0

    def get(self, key: str) -> int | None:
        """Return the number of a key; None if it has none."""
        slot = self._find(hash(key) & _DIGEST or 1)
        return self._values[slot] if self._digests[slot] else None

    def __setitem__(self, key: str, value: int) -> None:
        if 3 * self._size >= 2 * len(self._digests):
            self._grow()
        self._set(hash(key) & _DIGEST or 1, value)

    def _find(self, digest: int) -> int:
        """Return the slot of a digest, or the free one for it."""
        digests = self._digests
        mask = len(digests) - 1
        slot = digest & mask
        while (held := digests[slot]) and held != digest:
            slot = (slot + 1) & mask
        return slot

    def _grow(self) -> None:
        digests, values = self._digests, self._values
        self._digests = array("Q", bytes(16 * len(digests)))
        self._values = array("I", bytes(8 * len(values)))
        self._size = 0
        for digest, value in zip(digests, values, strict=True):
            if digest:
                self._set(digest, value)

    def _set(self, digest: int, value: int) -> None:
        slot = self._find(digest)
        self._size += not self._digests[slot]
        self._digests[slot], self._values[slot] = digest, value
