"""Names under which secrets are kept."""

from __future__ import annotations

import re
from typing import Final

SENSITIVE_KEYS: Final[frozenset[str]] = frozenset(
    {
        "api_key",
        "apikey",
        "api-key",
        "secret",
        "password",
        "token",
        "credential",
        "credentials",
        "private_key",
        "privatekey",
        "auth",
        "authorization",
    }
)
"""Keys (complete, in lower case) whose values are secrets."""

SECRET_NAME: Final = re.compile(
    r"(?i)(?:^|[_-])(?:(?:api_?)?key|token|secret|credential|passphrase|pass|pat)(?:[_-]|$)"
    r"|(?:^|[_-])(?:api_?key|secret|credential)s(?:[_-]|$)"
    r"|passw(?:or)?d|[_-]pwd$|(?:^|[_-])auth(?:_header)?$"
)
"""Names of variables, and of keys with string values, that hold a secret: ``GITHUB_TOKEN``."""
