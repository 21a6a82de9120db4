"""Convert the rules of a gitleaks release to `src/amplifier_support/gitleaks_rules.json`.

Usage: ``python .ci/secret_rules.py gitleaks.toml VERSION``, with the `config/gitleaks.toml` of the
release. Review the diff, then run `tests/amplifier_support/test_redaction.py`.

gitleaks scans files for one finding a secret; redaction must find every occurrence, in prose, JSON
and terminal output, also of a token that was shortened. Therefore:

* what gitleaks requires after a secret becomes "not a letter or digit";
* a token with a prefix of its own is found without the name of its vendor next to it, also longer
  or shorter than it should be;
* what is a secret only because of a name in front of it has a digit: words are no secrets;
* what leads to the secret, such as ``ACME_KEY=``, is in the group ``keep``;
* rules that take any word, hash or UUID for a secret are left out (see `LEFT_OUT`).
"""

from __future__ import annotations

import json
import re
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

TARGET = Path(__file__).parents[1] / "src/amplifier_support/gitleaks_rules.json"

LEFT_OUT = {
    "generic-api-key": "any word after `key=`; the shape `password` is narrower",
    "curl-auth-header": "quadratic; the shapes `bearer` and `basic-auth`",
    "curl-auth-user": "quadratic; the shape `curl-user`",
    "kubernetes-secret-yaml": "quadratic",
    "pkcs12-file": "a file name",
    "private-key": "the shape `private-key` also finds keys that were cut",
    "sourcegraph-access-token": "any commit id near the word",
    "jwt": "the shape `jwt` also finds shortened ones",
    "jwt-base64": "a JWT encoded twice; other text looks like it",
    "azure-ad-client-secret": "the shape `azure-client-secret`",
    "aws-amazon-bedrock-api-key-short-lived": "the start only; the shape `bedrock-key`",
    "hashicorp-tf-password": "the shape `password`",
    "freemius-secret-key": "the shape `password`",
    "gitlab-session-cookie": "the shape `cookie`",
    "vault-service-token": "any method call on `s`; the shape `vault-token`",
    "nuget-config-password": "any text between quotes",
    "flutterwave-public-key": "public",
    "lob-pub-api-key": "public",
    "mailgun-pub-key": "public",
}
PUBLIC = "-client-id"
"""Ends the names of rules for values that are public."""

NOTICE = """gitleaks is distributed under the MIT License.

Copyright (c) 2019 Zachary Rice

Permission is hereby granted, free of charge, to any person obtaining a copy of this software and \
associated documentation files (the "Software"), to deal in the Software without restriction, \
including without limitation the rights to use, copy, modify, merge, publish, distribute, \
sublicense, and/or sell copies of the Software, and to permit persons to whom the Software is \
furnished to do so, subject to the following conditions:

The above copyright notice and this permission notice shall be included in all copies or \
substantial portions of the Software.

THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING BUT \
NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND \
NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM, \
DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM, OUT \
OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE."""

_CONTEXT = re.compile(r"^(?:\(\?i\))?\[\\w\.-\]\{0,50\}\?(?=\(\?)")
_ENDS = re.compile(
    r"\(\?:\[\\x60'\"\\s;\]\|\\\\\[nr\]\|\$(?:\|\\b)?\)$|\(\?:\[\^[^\]]*\]\|\\z\)$|\\b$"
)
_OPERATOR = r"""[\x60'"\s=]{0,5}("""
_LAST_COUNT = re.compile(r"(\[[^\]]+\]|\\w)\{(\d+)(?:,\d*)?\}(?=\)*$)")
_DIGIT_AHEAD = r"(?=[^\d\s]{0,80}\d)"
LOOSE = 16
"""Characters after the prefix of a token that are enough, if there is a digit among them."""


def converted(rule: dict[str, Any]) -> dict[str, Any]:
    """A rule for `amplifier_support.redaction`."""
    pattern = rule["regex"]
    hints = [word.lower() for word in rule["keywords"]]
    prefix = next((word for word in hints if _is_prefix(word, pattern)), None)
    parts = [_alternative(part, hints, prefix) for part in _alternatives(pattern)]
    python = _scoped_flags("|".join(parts).replace("[:alnum:]", "a-zA-Z0-9").replace(r"\z", r"\Z"))
    # A joined alternative keeps its own lead: group names must be unique.
    for number in range(python.count("(?P<keep>") - 1, 0, -1):
        head, _, tail = python.rpartition("(?P<keep>")
        python = f"{head}(?P<keep_{number}>{tail}"
    re.compile(python)
    found = {"kind": rule["id"], "hints": hints, "pattern": python}
    return found | ({"entropy": rule["entropy"]} if rule.get("entropy") else {})


def _is_prefix(word: str, pattern: str) -> bool:
    """Whether the secrets themselves start with a keyword, which nothing else is likely to do."""
    if len(word) < 4 or word == "live_":
        return False
    mark = "[-_.]" if word.isalpha() else ""
    found = rf"(?:^|[(b\]}}]){re.escape(word)}{mark}"
    return re.search(found, pattern.replace("\\", ""), re.IGNORECASE) is not None


def _outside_classes(pattern: str, start: int = 0) -> Iterator[tuple[int, str, int]]:
    """What is neither escaped nor in a character class: index, character, and depth of groups after it."""
    depth, in_class, i = 0, False, start
    while i < len(pattern):
        char = pattern[i]
        if char == "\\":
            i += 1
        elif in_class:
            in_class = char != "]"
        else:
            depth += (char == "(") - (char == ")")
            yield i, char, depth
            if char == "[":
                in_class = True
                i += pattern[i + 1 : i + 2] in ("]", "^")
        i += 1


def _alternatives(pattern: str) -> list[str]:
    """The top-level alternatives of a pattern."""
    found, start = [], 0
    for i, char, depth in _outside_classes(pattern):
        if char == "|" and depth == 0:
            found.append(pattern[start:i])
            start = i + 1
    return [*found, pattern[start:]]


def _alternative(part: str, hints: list[str], prefix: str | None) -> str:
    anycase = part.startswith("(?i)")
    body = _CONTEXT.sub("", part)
    contextual = body != part or _OPERATOR in part
    body = body.removeprefix("(?i)")
    body = _ENDS.sub("", body)
    end = r"(?![A-Za-z0-9])"
    if contextual:
        at = body.index(_OPERATOR) + len(_OPERATOR) - 1
        lead, secret = body[:at], body[at:]
        if lead.startswith(r"(?i:[\w.-]{0,50}?"):
            lead, anycase = "(?i:" + lead.removeprefix(r"(?i:[\w.-]{0,50}?"), False
        if prefix and re.match(rf"\({re.escape(prefix)}", secret.replace("\\", ""), re.IGNORECASE):
            text = "{start}" + _loose(secret)
            hints[:] = [prefix]
        else:
            # Quotes are escaped in JSON.
            lead = lead.replace(r"""[\s'"]{0,3}""", r"""[\s'"\\]{0,6}""")
            lead = lead.replace(r"""[\x60'"\s=]{0,5}""", r"""[\x60'"\s=\\]{0,8}""")
            text = f"(?P<keep>{lead}){_DIGIT_AHEAD}{secret}{end}"
    else:
        text = re.sub(r"^\\b", "{start}", body)
        loose = _loose(text) if prefix else text
        text = loose if loose != text else text + end
    text = _without_groups(text)
    if text.startswith("{start}"):
        # Looking at the next character first is ten times faster than looking back.
        text = f"(?=[{_first_characters(_scoped_flags(text.removeprefix('{start}')))}]){text}"
    return f"(?i:{text})" if anycase else f"(?:{text})"


def _first_characters(pattern: str) -> str:
    """The characters a match can start with, as the inside of a character class."""
    found = ""
    for part in _alternatives(pattern):
        if part.startswith("(?="):
            part = part[_closing(part, 0) + 1 :]
        if part.startswith("(?"):
            colon, end = part.index(":"), _closing(part, 0)
            if part[end + 1 : end + 2] in ("?", "*"):
                raise ValueError(f"may be empty: {part}")
            inner = _first_characters(part[colon + 1 : end])
            found += inner + inner.swapcase() if "i" in part[2:colon] else inner
        elif part.startswith("["):
            found += part[1 : part.index("]")]
        else:
            found += part[0] if part[0].isalnum() else part[:2]
    return "".join(dict.fromkeys(found)) if found.isalnum() else found


def _closing(pattern: str, at: int) -> int:
    """The index of the parenthesis that closes the one at `at`."""
    return next(i for i, _, depth in _outside_classes(pattern, at) if depth == 0)


def _loose(secret: str) -> str:
    """A token with more characters at its end, or with fewer if there is a digit among them."""

    def counted(match: re.Match[str]) -> str:
        some, least = match[1], int(match[2])
        if least <= LOOSE:
            return f"{some}{{{least},}}+"
        return f"(?:{some}{{{least},}}+|{_DIGIT_AHEAD}{some}{{{LOOSE},}}+)"

    return _LAST_COUNT.sub(counted, secret)


def _without_groups(text: str) -> str:
    """Capturing groups made plain ones."""
    return re.sub(r"(?<!\\)\((?!\?)", "(?:", text)


def _scoped_flags(pattern: str) -> str:
    """`a(?i)b` as `a(?i:b)`: Go's flags hold to the end of the group they are in."""
    while (at := pattern.find("(?i)")) >= 0:
        end = len(pattern)
        for i, char, depth in _outside_classes(pattern, at + 4):
            if depth < 0:
                end = i
                break
            if char == "|" and depth == 0:
                raise ValueError(f"a flag before an alternative: {pattern}")
        pattern = f"{pattern[:at]}(?i:{pattern[at + 4 : end]}){pattern[end:]}"
    return pattern


def main() -> None:
    source, version = sys.argv[1:]
    rules = tomllib.loads(Path(source).read_text("utf-8"))["rules"]
    wanted = [r for r in rules if r["id"] not in LEFT_OUT and not r["id"].endswith(PUBLIC)]
    kept = [converted(rule) for rule in wanted]
    lines = ",\n  ".join(json.dumps(rule) for rule in kept)
    head = json.dumps({"source": f"gitleaks {version}", "notice": NOTICE}, indent=1).rstrip("}\n ")
    TARGET.write_text(f'{head},\n "rules": [\n  {lines}\n ]\n}}\n', "utf-8")
    print(f"{len(kept)} of {len(rules)} rules")


if __name__ == "__main__":
    main()
