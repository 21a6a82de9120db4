"""Tables of very many keys."""

import random
import tracemalloc

from amplifier_batch.key_table import KeyTable


def test_a_table_has_the_last_number_of_each_key_and_no_others() -> None:
    draw, table, known = random.Random(1), KeyTable(), dict[str, int]()
    for _ in range(20_000):
        key, value = f"row-{draw.randrange(8_000)}", draw.randrange(1 << 32)
        assert table.get(key) == known.get(key)
        table[key] = known[key] = value
    assert all(table.get(f"row-{n}") == known.get(f"row-{n}") for n in range(9_000))


def test_keys_with_one_slot_are_kept_apart() -> None:
    class Same(str):
        """A key whose hash has only a few low bits, and one of 0."""

        __slots__ = ()

        def __hash__(self) -> int:
            return int(self) << 20

    table = KeyTable()
    for number in range(1_000):
        table[Same(number)] = number + 5
    assert [table.get(Same(number)) for number in range(1_001)] == [*range(5, 1_005), None]


def test_a_key_needs_little_memory() -> None:
    keys, table = [f"row-{number}" for number in range(20_000)], KeyTable()
    tracemalloc.start()
    try:
        for number, key in enumerate(keys):
            table[key] = number
        used = tracemalloc.get_traced_memory()[0]
    finally:
        tracemalloc.stop()
    assert used < 40 * len(keys)
