"""The environment of commands: the user's, without keys (Secrets)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from fnmatch import fnmatchcase
from typing import Any, cast

from amplifier_core.utils.truncate import SENSITIVE_KEYS

_SECRET_NAME = re.compile(
    r"""(^|_)(
        (API|ACCESS|SECRET|PRIVATE|AUTH|SUBSCRIPTION|SERVICE|ACCOUNT|LICENSE)_?KEY
      | TOKEN | SECRET | PASSPHRASE | CREDENTIAL
    )S?(_|$)
    | PASSWORD | PASSWD | ^MYSQL_PWD$
    | ^(ANTHROPIC|OPENAI|AZURE|GEMINI|GOOGLE|MISTRAL|GROQ|COHERE|XAI|DEEPSEEK|OPENROUTER)_(.*_)?KEY$
    """,
    re.VERBOSE | re.IGNORECASE,
)
_SHORTEST_SECRET = 8


def command_environment(
    own: Mapping[str, str],
    *,
    secrets: Iterable[str],
    passthrough: Iterable[str],
    secret_names: Iterable[str] = (),
) -> dict[str, str]:
    """The variables of `own` a command gets.

    Left out are those whose name says secret (`*_API_KEY`, `*_TOKEN`, `*_SECRET` and the like),
    those of `secret_names`, and those with one of `secrets` or the value of one of `secret_names`
    in their value, unless `passthrough` names them.
    """
    kept = list(passthrough)
    named = set(secret_names)
    known = [*secrets, *(own[name] for name in named if name in own)]
    values = [secret for secret in known if len(secret) >= _SHORTEST_SECRET]
    return {
        name: value
        for name, value in own.items()
        if any(fnmatchcase(name, pattern) for pattern in kept)
        or not (
            name in named or _SECRET_NAME.search(name) or any(secret in value for secret in values)
        )
    }


def configured_secrets(config: Any) -> list[str]:
    """The keys that providers are configured with, whatever variables they came from."""
    providers = cast("Mapping[str, Any]", config).get("providers") if config else None
    return list(_secrets(providers))


def _secrets(value: Any) -> Iterator[str]:
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[Any, Any]", value).items():
            if isinstance(inner, str):
                if _is_secret(str(key)):
                    yield inner
            else:
                yield from _secrets(inner)
    elif isinstance(value, list | tuple):
        for inner in cast("list[Any]", value):
            yield from _secrets(inner)


def _is_secret(key: str) -> bool:
    return key.lower() in SENSITIVE_KEYS or _SECRET_NAME.search(key) is not None
