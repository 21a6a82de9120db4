"""Replaces secrets in text: known values first, then anything that has the shape of a secret.

The shapes are anchored at distinctive prefixes; nothing is taken for a secret because it looks
random, so hashes, UUIDs and encoded images stay. Each pattern reads a character a bounded number
of times, whatever the text: runs are possessive and cannot begin inside one another, or bounded.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping
from copy import copy
from dataclasses import fields, is_dataclass
from functools import lru_cache
from typing import Any, NamedTuple, cast

from amplifier_support.secret_names import SECRET_NAME, SENSITIVE_KEYS

MAX_DEPTH = 32
KNOWN = "secret"
"""Kind of a known value."""

_SHORTEST_SECRET = 8
_SHORT = 64
_LONG = 50_000
_DATA = re.compile(r"[A-Za-z0-9+/]++={0,2}")
"""Matches long encoded data, such as an image, in which every prefix occurs by chance."""

_REMEMBERED = 2048
"""Recent texts without secrets: keys, names and ids come with every event."""

# Not inside a word, except behind an escaped line break, as in JSON within a string.
# A colour sequence ends with a letter, even without its ESC.
_COLOURED = "|".join(rf"(?<=\[[0-9;]{{{count}}}[A-Za-z])" for count in range(10))
_START = rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|{_COLOURED})"
_QUOTE = r"(?:\\{0,3}[\"'])"
_PEM = r"PRIVATE\ KEY(?:\ BLOCK)?-----"
_PASSWORD_NAME = (
    r"(?:passw(?:or)?d|passphrase|pwd|secret(?:_?access)?(?:_?key)?|(?:api|access|account)[_-]?key"
    r"|(?:auth|access|refresh|api)[_-]?token)"
)
_PASSWORD_HINTS = (
    *("passw", "passphrase", "pwd", "secret"),
    *(f"{a}{sep}key" for a in ("api", "access", "account") for sep in ("", "_", "-")),
    *(f"{a}{sep}token" for a in ("auth", "access", "refresh", "api") for sep in ("", "_", "-")),
)


class Shape(NamedTuple):
    """What a kind of secret looks like.

    Attributes:
        kind: Name in the replacement.
        hints: Lower-case texts one of which is in every match: what to look for first.
        pattern: Regular expression; what its group `keep_…` matches stays.
    """

    kind: str
    hints: tuple[str, ...]
    pattern: str


def _token(kind: str, hints: str, pattern: str) -> Shape:
    return Shape(kind, tuple(hints.split()), f"{_START}(?:{pattern})")


SECRETS = (
    Shape(
        "private-key",
        ("-----begin",),
        rf"-----BEGIN\ [A-Z0-9\ ]{{0,30}}{_PEM}"
        rf"(?:(?:[^-]|-(?!----))*+-----END\ [A-Z0-9\ ]{{0,30}}{_PEM}"
        r"|(?:(?:\\[nr]|\s){0,4}[A-Za-z0-9+/=]{16,}+)++)",
    ),
    _token("private-key", "age-secret-key-", r"AGE-SECRET-KEY-1[A-Z0-9]{50,70}"),
    _token("aws-key", "akia asia abia acca", r"A(?:KIA|SIA|BIA|CCA)[A-Z2-7]{16}(?![A-Za-z0-9])"),
    _token(
        "github-token",
        "ghp_ gho_ ghu_ ghs_ ghr_ github_pat_",
        r"gh[pousr]_[A-Za-z0-9]{30,255}|github_pat_[A-Za-z0-9_]{22,255}",
    ),
    _token(
        "gitlab-token",
        "glpat- gldt- glrt- glptt- glcbt- glsoat-",
        r"gl(?:pat|dt|rt|ptt|cbt|soat)-[A-Za-z0-9_.-]{20,255}",
    ),
    _token(
        "slack-token",
        "xox xapp- hooks.slack.com",
        r"xox[abeoprs]-[A-Za-z0-9-]{10,255}|xapp-\d-[A-Za-z0-9-]{10,255}"
        r"|hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,255}",
    ),
    _token("anthropic-key", "sk-ant-", r"sk-ant-[A-Za-z0-9_-]{16,512}"),
    _token(
        "openai-key", "sk-", r"sk-(?!ant-)(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9][A-Za-z0-9_-]{19,512}"
    ),
    _token(
        "google-key",
        "aiza ya29. gocspx- 1//0",
        r"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,1024}|GOCSPX-[A-Za-z0-9_-]{20,64}"
        r"|1//0[A-Za-z0-9_-]{20,255}",
    ),
    _token(
        "stripe-key",
        "_live_ _test_ whsec_",
        r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,255}|whsec_[A-Za-z0-9+/=]{24,255}",
    ),
    _token("npm-token", "npm_", r"npm_[A-Za-z0-9]{36}"),
    _token("pypi-token", "pypi-age", r"pypi-AgE[A-Za-z0-9_-]{40,512}"),
    _token("huggingface-token", "hf_", r"hf_[A-Za-z0-9]{30,64}"),
    _token("groq-key", "gsk_", r"gsk_[A-Za-z0-9]{40,80}"),
    _token("xai-key", "xai-", r"xai-[A-Za-z0-9]{60,120}"),
    _token("sendgrid-key", "sg.", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}"),
    _token("digitalocean-token", "do", r"do[opr]_v1_[a-f0-9]{64}"),
    _token("docker-token", "dckr_", r"dckr_[po]at_[A-Za-z0-9_-]{20,64}"),
    _token("databricks-token", "dapi", r"dapi[a-f0-9]{32}(?![A-Za-z0-9])"),
    _token("shopify-token", "shp", r"shp(?:at|ca|pa|ss)_[a-fA-F0-9]{32}"),
    _token("vault-token", "hvs. hvb.", r"hv[sb]\.[A-Za-z0-9_-]{24,255}"),
    Shape(
        "jwt",
        ("eyj",),
        rf"(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|{_COLOURED})"
        r"eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+"
        r"\.[A-Za-z0-9_-]*+",
    ),
    Shape(
        "bearer",
        ("bearer",),
        r"(?P<keep_bearer>[Bb](?:earer|EARER)\s{1,4})"
        r"(?=[A-Za-z._~+/=-]{0,200}[0-9])[A-Za-z0-9._~+/=-]{12,}+",
    ),
    Shape(
        "basic-auth",
        ("authorization",),
        rf"(?P<keep_basic>(?i:authorization){_QUOTE}?\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}?"
        r"(?i:basic|token|apikey)\s{1,4})[A-Za-z0-9._~+/=-]{8,}+",
    ),
    Shape(
        "url-password",
        ("://",),
        r"(?<=://)(?P<keep_url>[^/\s:@\"'<>]{0,256}:)(?![\[$*{])[^/\s\"'<>]{1,256}(?=@)",
    ),
    Shape(
        "password",
        _PASSWORD_HINTS,
        rf"(?P<keep_password>(?i:{_PASSWORD_NAME}){_QUOTE}?\s{{0,3}}"
        rf"(?:=\s{{0,3}}|:\s{{0,3}}(?={_QUOTE}|[^\s\"',;&]{{0,60}}[0-9])){_QUOTE}?)"
        rf"(?!{_QUOTE}|[\[$%*{{<(]|(?i:none|null|true|false|undefined|str|string)\b)"
        r"[^\s\"'\\&;,<>(){}]{4,512}+(?![({])",
    ),
)
PII = (
    # Left to right: a name of the run `[\w.%+-]` begins at its start only, so no run is read twice.
    Shape(
        "email",
        ("@",),
        r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}+@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}",
    ),
    Shape(
        "phone",
        (),
        r"(?<![\w.+-])(?:\+[0-9]{1,3}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?(?:[0-9]{2,4}[ .-]?){2,4}[0-9]{2,4}"
        r"|\(?[2-9][0-9]{2}\)?[ .-][0-9]{3}[ .-][0-9]{4})(?![\w-])",
    ),
)
GROUPS: Mapping[str, tuple[Shape, ...]] = {"secrets": SECRETS, "pii-basic": PII}
"""The shapes by the name of their rule."""


def secrets_in(
    environment: Mapping[str, str] | None = None, names: Iterable[str] = ()
) -> list[str]:
    """Values of environment variables that are among `names` or named like secrets, longest first."""
    variables = os.environ if environment is None else environment
    known = set(names)
    found = {
        value
        for name, value in variables.items()
        if len(value) >= _SHORTEST_SECRET and (name in known or SECRET_NAME.search(name))
    }
    return sorted(found, key=len, reverse=True)


def configured_secrets(config: Any) -> list[str]:
    """The secrets in a config, by the names of their keys, whatever variables they came from."""
    return [value for value in _configured(config, 0) if len(value) >= _SHORTEST_SECRET]


def _configured(value: Any, depth: int) -> Iterator[str]:
    if depth > MAX_DEPTH:
        return
    if isinstance(value, Mapping):
        for key, inner in cast("Mapping[Any, Any]", value).items():
            if not isinstance(inner, str):
                yield from _configured(inner, depth + 1)
            elif _is_sensitive(key) or SECRET_NAME.search(str(key)):
                yield inner
    elif isinstance(value, (list, tuple)):
        for inner in cast("list[Any]", value):
            yield from _configured(inner, depth + 1)


def _is_sensitive(key: Any) -> bool:
    return isinstance(key, str) and key.lower() in SENSITIVE_KEYS


class Redactor:
    """Replaces secrets by ``[REDACTED:kind]``.

    Args:
        known: Values that are secret whatever they look like.
        shapes: What else to look for; earlier ones win.
        allowlist: Keys, or dotted paths of keys, whose values are left alone.
    """

    def __init__(
        self,
        known: Iterable[str] = (),
        shapes: Iterable[Shape] = SECRETS,
        allowlist: Iterable[str] = (),
    ) -> None:
        values = {value for value in known if value}
        # The form a value has in JSON that is itself a string.
        values |= {json.dumps(value)[1:-1] for value in values}
        self._known = sorted(values, key=len, reverse=True)
        self._hints = [(hint, shape) for shape in shapes for hint in shape.hints or ("",)]
        self._allowlist = frozenset(allowlist)
        self._clean: set[str] = set()

    def text(self, text: str) -> str:
        """`text` without secrets; the same object if there are none."""
        if text in self._clean:
            return text
        changed = self._replaced(text)
        if changed is text and len(text) <= _SHORT:
            if len(self._clean) >= _REMEMBERED:
                self._clean.clear()
            self._clean.add(text)
        return changed

    def _replaced(self, text: str) -> str:
        for value in self._known:
            if value in text:
                text = text.replace(value, f"[REDACTED:{KNOWN}]")
        if len(text) >= _LONG and _DATA.fullmatch(text):
            return text
        lowered = text.lower()
        # In the order of the shapes, each once; a shape without hints is always searched for.
        likely = tuple(dict.fromkeys([shape for hint, shape in self._hints if hint in lowered]))
        if not likely:
            return text
        pattern, kinds = _compiled(likely)

        def marked(match: re.Match[str]) -> str:
            kept = next((k for n, k in match.groupdict().items() if k and n[:5] == "keep_"), "")
            return f"{kept}[REDACTED:{kinds[match.lastgroup or '']}]"

        changed = pattern.sub(marked, text)
        return text if changed == text else changed

    def value(self, value: Any, path: str = "", depth: int = 0) -> Any:
        """`value` with the secrets in its strings replaced; the same object if it has none.

        Mappings, lists, tuples, pydantic models and dataclasses are looked into and copied where
        something changes; what else it is is left alone. Of a mapping also the strings under keys
        that say secret are replaced.
        """
        if isinstance(value, str):
            return self.text(value)
        if depth > MAX_DEPTH:
            return value
        if isinstance(value, Mapping):
            return self._mapping(cast("Mapping[Any, Any]", value), path, depth)
        if isinstance(value, (list, tuple)):
            items = cast("list[Any]", value)
            changed = [self.value(item, f"{path}[{i}]", depth + 1) for i, item in enumerate(items)]
            if all(new is old for new, old in zip(changed, items, strict=True)):
                return items
            return changed if isinstance(value, list) else tuple(changed)
        if hasattr(type(value), "model_copy"):
            held = {**value.__dict__, **(value.model_extra or {})}
            changes = self._changes(held, path, depth)
            return value.model_copy(update=changes) if changes else value
        if is_dataclass(value) and not isinstance(value, type):
            held = {f.name: getattr(value, f.name) for f in fields(value) if hasattr(value, f.name)}
            return _with_fields(value, self._changes(held, path, depth))
        return value

    def _mapping(self, value: Mapping[Any, Any], path: str, depth: int) -> Any:
        # The values themselves: event data would hand out a copy of each.
        held = (
            {key: dict.__getitem__(value, key) for key in value}
            if isinstance(value, dict)
            else dict(value)
        )
        changes = self._changes(held, path, depth)
        keys = {key: self.text(key) for key in held if isinstance(key, str)}
        renamed = any(new is not old for old, new in keys.items())
        if not changes and not renamed:
            return value
        return {keys.get(key, key): changes.get(key, item) for key, item in held.items()}

    def _changes(self, held: Mapping[Any, Any], path: str, depth: int) -> dict[Any, Any]:
        changes: dict[Any, Any] = {}
        for key, item in held.items():
            inner = f"{path}.{key}" if path else str(key)
            if key in self._allowlist or inner in self._allowlist:
                continue
            if _is_sensitive(key) and isinstance(item, str) and item:
                new: Any = item if item.startswith("[REDACTED") else f"[REDACTED:{KNOWN}]"
            else:
                new = self.value(item, inner, depth + 1)
            if new is not item:
                changes[key] = new
        return changes


def _with_fields(value: Any, changes: Mapping[str, Any]) -> Any:
    if not changes:
        return value
    twin = copy(value)
    for name, item in changes.items():
        # object's own setter: frozen dataclasses refuse theirs.
        object.__setattr__(twin, name, item)
    return twin


@lru_cache(maxsize=256)
def _compiled(shapes: tuple[Shape, ...]) -> tuple[re.Pattern[str], dict[str, str]]:
    """One alternation of the shapes, and their kinds by the names of its groups."""
    kinds = {f"shape_{number}": shape.kind for number, shape in enumerate(shapes)}
    parts = [f"(?P<{name}>{s.pattern})" for name, s in zip(kinds, shapes, strict=True)]
    return re.compile("|".join(parts)), kinds
