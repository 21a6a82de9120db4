"""Random changes to an input: of its bytes, and of the JSON in it."""

import json
import random
import re
from collections.abc import Sequence
from typing import Any

_JSON_LINE = re.compile(rb"^(data: |)([\[{].*[\]}])\r?$", re.MULTILINE)

_HOSTILE: tuple[Any, ...] = (
    *(None, True, False, 0, -1, 1, 2**31, 2**64, -(2**70), 1e308, 0.5, float("nan"), float("inf")),
    *("", " ", "0", "12", "x" * 300, "\x00", "\x1b[31m", "\u202e", "\ud800", "\udc00", "é", "😀"),
    *("../../etc/passwd", "a/b", "null", "{}", "[", "tool", "user", "text", "2026-02-30T25:61:00Z"),
    *([], {}, [[]], [None], {"": None}, [{}], {"type": "text"}, {"type": None}, {"text": 1}),
    [1, "a", None, {"type": "text", "text": "x"}],
)
"""Values of the wrong type, out of range, or with characters that need care."""


def mutate(data: bytes, chance: random.Random, tokens: Sequence[bytes] = ()) -> bytes:
    """The input with one to four random changes.

    Args:
        data: The input.
        chance: Decides; the same state gives the same result.
        tokens: Words of the format, to be put in.
    """
    for _ in range(chance.choice((1, 1, 2, 4))):
        changed = _change_json(data, chance) if chance.random() < 0.6 else None
        data = changed if changed is not None else _change_bytes(data, chance, tokens)
    return data


def _change_bytes(data: bytes, chance: random.Random, tokens: Sequence[bytes]) -> bytes:
    at = chance.randint(0, len(data))
    end = min(len(data), at + chance.choice((0, 1, 1, 2, 8, 64)))
    size = chance.choice((1, 2, 16))
    choices = [
        b"",
        bytes(chance.randrange(256) for _ in range(size)),
        data[at:end] * chance.choice((2, 3, 50)),
        data[(start := chance.randint(0, len(data))) : start + 8 * size],
        chance.choice((b"\n", b"\r\n", b"\x00", b"\xff", b"\xef\xbb\xbf", b" ", b'"', b"[" * 200)),
    ]
    choices += [chance.choice(list(tokens))] * 2 if tokens else []
    return data[:at] + chance.choice(choices) + data[end:]


def _change_json(data: bytes, chance: random.Random) -> bytes | None:
    """Change a value in one of the JSON texts in `data`; None if it has none."""
    found = [match.span(2) for match in _JSON_LINE.finditer(data)] or [(0, len(data))]
    start, end = chance.choice(found)
    try:
        value = json.loads(data[start:end])
    except (ValueError, RecursionError):
        return None
    root = [value]
    holder: Any = root
    key: Any = 0
    # Walk down a random path, so that outer values are changed as often as inner ones.
    while chance.random() < 0.8 and isinstance(child := holder[key], (dict, list)) and child:
        holder, key = (
            child,
            chance.choice(list(child) if isinstance(child, dict) else range(len(child))),
        )
    _change_value(holder, key, chance)
    text = json.dumps(root[0] if root else None, ensure_ascii=chance.random() < 0.5)
    return data[:start] + text.encode("utf-8", "surrogatepass") + data[end:]


def _change_value(holder: Any, key: Any, chance: random.Random) -> None:
    match chance.randrange(6):
        case 0:
            del holder[key]
        case 1 if isinstance(holder, dict):
            holder[chance.choice(("type", "id", "role", "content", str(key) + "x"))] = holder[key]
        case 1:
            holder.insert(key, holder[key])
        case 2:
            nested: Any = holder[key]
            for _ in range(chance.choice((1, 3, 200))):
                nested = [nested] if chance.random() < 0.5 else {"content": nested}
            holder[key] = nested
        case _:
            holder[key] = chance.choice(_HOSTILE)
