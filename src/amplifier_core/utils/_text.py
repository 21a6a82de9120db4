"""Text that must survive JSON, UTF-8 and a terminal."""

import re

_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_UNSAFE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ud800-\udfff]")


def strip_control_characters(text: str) -> str:
    """`text` without C0 and C1 controls; tab, line feed and carriage return stay."""
    return _CONTROL.sub("", text)


def sanitize_text(text: str) -> str:
    """`text` without control characters (as above) and without lone surrogates."""
    return _UNSAFE.sub("", text)
