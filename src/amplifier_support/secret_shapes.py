"""The forms of secrets: the rules that gitleaks publishes, and forms those do not cover.

gitleaks looks for complete tokens of known vendors. The shapes here find what has no vendor (a
password in a URL, a cookie, a private key) and tokens it does not know or whose length varies.

The shapes are anchored at distinctive prefixes; nothing is taken for a secret because it looks
random, so hashes, UUIDs and encoded images stay. Each pattern reads a character a bounded number
of times, whatever the text: runs are possessive and cannot begin inside one another, or bounded.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from functools import lru_cache
from pathlib import Path
from typing import Any, Final

from amplifier_support.named_tuple import NamedTuple
from amplifier_support.text import lazy_pattern

_RULES = Path(__file__).with_name("gitleaks_rules.json")

# Not inside a word, except behind an escaped line break, as in JSON within a string, or behind a
# character of a URL written as `%3D`. A colour sequence ends with a letter, even without its ESC.
_COLOURED = "|".join(rf"(?<=\[[0-9;]{{{count}}}[A-Za-z])" for count in range(10))
_START = rf"(?:(?<![A-Za-z0-9])|(?<=\\[nrt])|(?<=%[0-9A-Fa-f]{{2}})|{_COLOURED})"
_NO_HASH = r"(?<!sha256[=:-])(?<!sha384[=:-])(?<!sha512[=:-])"
_QUOTE = r"(?:\\{0,3}[\"'])"
_SPACE = r"(?:\s|\\{1,3}[nrt])"
_DIGIT_AHEAD = r"(?=[^\d\s]{0,80}\d)"
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
_ENVIRONMENT = r"(?:os\.environ|process\.env|import\.meta\.env|ENV)[.\[]"
"""Code that reads a variable, of which only the name is there."""
_PLACEHOLDER = r"(?!\[|\{|\*+@|\$\{|\$[A-Za-z_]\w*@)"


class Shape(NamedTuple):
    """The form of one kind of secret.

    Attributes:
        kind: Name in the replacement.
        hints: Lower-case texts one of which is in every match: what to look for first.
        pattern: Regular expression; what its group `keep` matches stays.
        entropy: Shannon entropy in bits per character that the secret has at least.
        everywhere: Whether to look for it in any text; otherwise only in one with a run of at least
            `redaction.RUN` characters that may be a token.
    """

    kind: str
    hints: tuple[str, ...]
    pattern: str
    entropy: float = 0.0
    everywhere: bool = False


def _any_text(kind: str, hints: tuple[str, ...], pattern: str) -> Shape:
    return Shape(kind, hints, pattern, everywhere=True)


def _token(kind: str, hints: str, pattern: str, first: str) -> Shape:
    # The next character first: that is ten times faster than looking back at each.
    return Shape(kind, tuple(hints.split()), f"(?=[{first}]){_START}{_NO_HASH}(?:{pattern})")


_OWN = (
    _any_text(
        "private-key",
        ("-----begin",),
        rf"-----BEGIN\ [A-Z0-9\ ]{{0,30}}{_PEM}"
        rf"(?:(?>(?:[^-]|-(?!----))*)-----END\ [A-Z0-9\ ]{{0,30}}{_PEM}"
        r"|(?>(?:(?:\\[nr]|\s){0,4}[A-Za-z0-9+/=]{16,}+)+))",
    ),
    _token(
        "gitlab-token",
        "glpat- gldt- glrt- glptt- glcbt- glsoat-",
        r"gl(?:pat|dt|rt|ptt|cbt|soat)-[A-Za-z0-9_.-]{20,255}",
        "g",
    ),
    _token(
        "slack-token",
        "xox xapp- hooks.slack.com",
        r"xox[abeoprs]-[A-Za-z0-9-]{10,255}|xapp-\d-[A-Za-z0-9-]{10,255}"
        r"|hooks\.slack\.com/(?:services|workflows)/[A-Za-z0-9/_-]{20,255}",
        "xh",
    ),
    _token("anthropic-key", "sk-ant-", r"sk-ant-[A-Za-z0-9_-]{16,512}", "s"),
    _token(
        "openai-key",
        "sk-",
        r"sk-(?!ant-)(?=[A-Za-z_-]{0,40}[0-9])[A-Za-z0-9][A-Za-z0-9_-]{19,512}",
        "s",
    ),
    _token(
        "google-key",
        "aiza ya29. gocspx- 1//0",
        r"AIza[A-Za-z0-9_-]{35}|ya29\.[A-Za-z0-9_-]{20,1024}|GOCSPX-[A-Za-z0-9_-]{20,64}"
        r"|1//0[A-Za-z0-9_-]{20,255}",
        "AyG1",
    ),
    _token(
        "stripe-key",
        "_live_ _test_ whsec_",
        r"[sr]k_(?:live|test)_[A-Za-z0-9]{16,255}|whsec_[A-Za-z0-9+/=]{24,255}",
        "srw",
    ),
    _token("pypi-token", "pypi-age", r"pypi-AgE[A-Za-z0-9_-]{40,512}", "p"),
    _token("huggingface-token", "hf_", r"hf_[A-Za-z0-9]{30,64}", "h"),
    _token("groq-key", "gsk_", r"gsk_[A-Za-z0-9]{40,80}", "g"),
    _token("xai-key", "xai-", r"xai-[A-Za-z0-9]{60,120}", "x"),
    _token("sendgrid-key", "sg.", r"SG\.[A-Za-z0-9_-]{16,32}\.[A-Za-z0-9_-]{32,64}", "S"),
    _token("docker-token", "dckr_", r"dckr_[po]at_[A-Za-z0-9_-]{20,64}", "d"),
    _token("vault-token", "hvs. hvb. hvr.", r"hv[sbr]\.[A-Za-z0-9_-]{24,255}", "h"),
    _token("telegram-token", ":aa", r"[0-9]{7,12}:AA[A-Za-z0-9_-]{30,40}", "0-9"),
    _token("bedrock-key", "bedrock-api-key-", r"bedrock-api-key-[A-Za-z0-9+/=]{16,4096}", "b"),
    _token(
        "azure-client-secret",
        "q~",
        r"[A-Za-z0-9_~.]{3}[0-9]Q~[A-Za-z0-9_~.-]{31,34}",
        "A-Za-z0-9_~.",
    ),
    _token(
        "api-key",
        "tvly- r8_ csk- pcsk_ lsv2_ jina_ nvapi- sbp_ tskey- figd_ e2b_ tgp_v1_ nfp_ lin_oauth_ dp.",
        r"(?:tvly-(?:dev-|prod-)?|r8_|csk-|pcsk_|lsv2_[ps][tk]_|jina_|nvapi-|sbp_"
        r"|tskey-[a-z]{2,12}-|figd_|e2b_|tgp_v1_|nfp_|lin_oauth_|dp\.(?:ct|sa|st|scim|audit)\.)"
        rf"{_DIGIT_AHEAD}[A-Za-z0-9_-]{{16,}}+",
        "tr8cpljnsfed",
    ),
    Shape(
        "jwt",
        ("eyj",),
        rf"(?=eyJ)(?:(?<![A-Za-z0-9_-])|(?<=\\[nrt])|{_COLOURED})"
        r"eyJ[A-Za-z0-9_-]{8,}+\.eyJ[A-Za-z0-9_-]{8,}+"
        r"\.[A-Za-z0-9_-]*+",
    ),
    # The end of a private key whose start was cut off.
    _any_text(
        "private-key",
        ("-----end",),
        r"(?<![A-Za-z0-9+/=])(?>(?:[A-Za-z0-9+/=]{8,100}+(?>(?:\\{1,3}[nr]|\s){1,4})){1,60})"
        rf"-----END\ [A-Z0-9\ ]{{0,30}}{_PEM}",
    ),
    _any_text(
        "bearer",
        ("bearer",),
        r"(?P<keep>[Bb](?:earer|EARER)\s{1,4})"
        r"(?=[A-Za-z._~+/=-]{0,200}[0-9])[A-Za-z0-9._~+/=-]{12,}+",
    ),
    _any_text(
        "basic-auth",
        ("authorization",),
        rf"(?P<keep>(?i:authorization){_QUOTE}?\s{{0,4}}[:=]\s{{0,4}}{_QUOTE}?"
        r"(?i:basic|token|apikey)\s{1,4})[A-Za-z0-9._~+/=-]{8,}+",
    ),
    _any_text(
        "cookie",
        ("cookie",),
        rf"(?P<keep>(?i:cookie){_QUOTE}?\s{{0,3}}[:=]\s{{0,3}}{_QUOTE}?)"
        r"(?:[^\s=;\"'\\\[]{1,100}+=[^;\s\"'\\\[]{4,4096}+(?:;\ ?)?){1,100}",
    ),
    _any_text(
        "netrc",
        ("machine", "login"),
        rf"(?P<keep>(?=[ml]){_START}(?:machine|login){_SPACE}{{1,10}}[^\s\\]{{1,255}}"
        rf"(?:{_SPACE}{{1,10}}(?:login|account){_SPACE}{{1,10}}[^\s\\]{{1,255}}){{0,2}}"
        rf"{_SPACE}{{1,10}}password{_SPACE}{{1,10}}{_QUOTE}?)(?!\[)[^\s\\\"']{{1,256}}",
    ),
    _any_text(
        "url-password",
        ("://",),
        rf"(?<=://)(?P<keep>[^/\s:@\"'<>]{{0,256}}:){_PLACEHOLDER}[^/\s\"'<>]{{1,256}}(?=@)",
    ),
    _any_text(
        "dsn-password",
        ("@tcp(", "@unix("),
        r"(?P<keep>(?<![\w.-])[\w.-]{1,64}+:)[^\s:@/\"'()\[\]]{1,256}(?=@(?:tcp|unix)\()",
    ),
    Shape(
        "signed-url",
        ("sig=", "signature=", "token=", "key="),
        r"(?P<keep>[?&](?i:sig|(?:x-amz-|x-goog-)?signature|x-amz-security-token|(?:\w{1,20}_)?token"
        rf"|(?:api_?)?key)=){_DIGIT_AHEAD}[A-Za-z0-9%+/=._~-]{{16,}}+",
    ),
    _any_text(
        "mysql-password",
        ("mysql", "mariadb"),
        rf"(?P<keep>(?=m){_START}(?:mysql|mariadb)(?:dump|admin|-dump|-admin)?\b[^\n|;&]{{0,200}}?\s-p)"
        rf"{_QUOTE}?(?![\[$])[^\s\"'\\-][^\s\"'\\]{{3,255}}",
    ),
    _any_text(
        "curl-user",
        ("curl",),
        rf"(?P<keep>(?=c){_START}curl\b[^\n|;]{{0,300}}?\s(?:-u|--user)(?:=|\s)?['\"]?[^\s:\"'\\]{{1,100}}:)"
        r"(?![\[$])[^\s\"'\\]{3,256}",
    ),
    _any_text(
        "password",
        _PASSWORD_HINTS,
        rf"(?P<keep>(?i:{_PASSWORD_NAME}){_QUOTE}?\s{{0,3}}"
        rf"(?:=\s{{0,3}}|:\s{{0,3}}(?={_QUOTE}|[^\s\"',;&]{{0,60}}[0-9])){_QUOTE}?)"
        rf"(?!{_QUOTE}|[\[$%*{{<(]|(?i:none|null|true|false|undefined|str|string)\b|{_ENVIRONMENT})"
        r"[^\s\"'\\&;,<>(){}]{4,512}+(?![({])",
    ),
    _any_text(
        "token",
        ("token=", "token =", "token:", "token :", "token'", 'token"', "token\\"),
        rf"(?P<keep>(?:TOKEN|(?<=[A-Za-z0-9][_-])[Tt]oken|(?<=[a-z])Token){_QUOTE}?"
        rf"\s{{0,3}}[:=]\s{{0,3}}{_QUOTE}?){_DIGIT_AHEAD}"
        r"(?![\[$%*{<(])[^\s\"'\\&;,<>(){}]{12,512}+(?![({])",
    ),
)
_RUN = r"(?>(?:[A-Za-z0-9+/=_~%-]|\.(?=[A-Za-z0-9+/=_~%-])){8,})"
# Not any word with a number, such as the name of a file: nine letters and digits in a row,
# with two digits or both cases.
_RANDOM = (
    r"(?=[A-Za-z0-9+/=_~%.-]{0,300}?(?<![A-Za-z0-9])"
    r"(?=\d{0,60}[A-Za-z])(?=[A-Za-z]{0,60}\d)"
    r"(?:(?=[A-Za-z]{0,60}\d[A-Za-z]{0,60}\d)|(?=[a-z0-9]{0,60}[A-Z])(?=[A-Z0-9]{0,60}[a-z]))"
    r"[A-Za-z0-9]{9})"
)
_CUT = _any_text(
    "cut-token",
    ("…", "... (truncated"),
    rf"(?<![A-Za-z0-9+/=_~%.-]){_RANDOM}{_RUN}\.?(?=(?:\n?\[)?…|\.\.\.\ \(truncated)"
    rf"|(?<=…\]\n){_RUN}",
)
"""One part of a token that was cut, whichever kind it is."""

PII = (
    # Left to right: a name of the run `[\w.%+-]` begins at its start only, so no run is read twice.
    _any_text(
        "email",
        ("@",),
        r"(?<![A-Za-z0-9._%+-])[A-Za-z0-9._%+-]{1,64}+@(?:[A-Za-z0-9-]{1,63}\.){1,8}[A-Za-z]{2,24}",
    ),
    _any_text(
        "phone",
        (),
        r"(?<![\w.+-])(?:\+[0-9]{1,3}[ .-]?(?:\([0-9]{1,4}\)[ .-]?)?(?:[0-9]{2,4}[ .-]?){2,4}[0-9]{2,4}"
        r"|\(?[2-9][0-9]{2}\)?[ .-][0-9]{3}[ .-][0-9]{4})(?![\w-])",
    ),
)


@lru_cache(maxsize=1)
def secret_shapes() -> tuple[Shape, ...]:
    """The shapes of secrets; earlier ones win."""
    rules = json.loads(_RULES.read_text("utf-8"))["rules"]
    published = [
        Shape(
            rule["kind"],
            tuple(rule["hints"]),
            rule["pattern"].replace("{start}", _START),
            rule.get("entropy", 0.0),
        )
        for rule in rules
    ]
    return (*_OWN, *published, _CUT)


def shape_groups() -> Mapping[str, tuple[Shape, ...]]:
    """The shapes by the name of their rule."""
    return {"secrets": secret_shapes(), "pii-basic": PII}


@lru_cache(maxsize=512)
def compiled(shape: Shape) -> re.Pattern[str]:
    """The pattern of a shape, compiled when a text may contain it."""
    return re.compile(shape.pattern)


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

SECRET_NAME: Final = lazy_pattern(
    r"(?i)(?:^|[_-])(?:(?:api_?)?key|token|secret|credential|passphrase|pass|pat)(?:[_-]|$)"
    r"|(?:^|[_-])(?:api_?key|secret|credential)s(?:[_-]|$)"
    r"|passw(?:or)?d|[_-]pwd$|(?:^|[_-])auth(?:_header)?$"
)
"""Names of variables, and of keys with string values, that hold a secret: ``GITHUB_TOKEN``."""


@lru_cache(maxsize=1024)
def is_secret_name(name: str) -> bool:
    """Return True if the name of a variable or key suggests a secret."""
    return SECRET_NAME.search(name) is not None


_OF_VARIABLE = lazy_pattern(r"(?i)[_-]env(?:[_-]?var(?:iable)?)?$")


_REFERENCES = lazy_pattern(r"(?:\$\{[A-Za-z_]\w*\})+|\$[A-Za-z_]\w*")


def refers_to_variables(value: str) -> bool:
    """Return true if a text is nothing but references to variables: ``${API_KEY}``."""
    return _REFERENCES.fullmatch(value) is not None


def names_variable(key: str, value: Any) -> bool:
    """Return True if a value is the name of the variable that holds the secret: ``passphrase_env: KIT_KEY``."""
    is_name = isinstance(value, str) and re.fullmatch("[A-Z_][A-Z0-9_]*", value) is not None
    return is_name and _OF_VARIABLE.search(key) is not None
