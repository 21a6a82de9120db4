"""Names under which secrets are kept."""

from __future__ import annotations

import re
from typing import Any, Final

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


def is_secret_name(name: str) -> bool:
    """Whether the name of a variable or key suggests a secret."""
    return SECRET_NAME.search(name) is not None


_OF_VARIABLE = re.compile(r"(?i)[_-]env(?:[_-]?var(?:iable)?)?$")


_REFERENCES = re.compile(r"(?:\$\{[A-Za-z_]\w*\})+|\$[A-Za-z_]\w*")


def refers_to_variables(value: str) -> bool:
    """Return true if a text is nothing but references to variables: ``${API_KEY}``."""
    return _REFERENCES.fullmatch(value) is not None


def names_variable(key: str, value: Any) -> bool:
    """Whether a value is the name of the variable that holds the secret: ``passphrase_env: KIT_KEY``."""
    is_name = isinstance(value, str) and re.fullmatch("[A-Z_][A-Z0-9_]*", value) is not None
    return is_name and _OF_VARIABLE.search(key) is not None
