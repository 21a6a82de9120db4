"""Texts that hold a secret, and texts that only look like it.

The secrets are put together here, so that no scanner of repositories takes them for real ones.
"""

from __future__ import annotations

import hashlib
from string import ascii_letters, ascii_uppercase, digits


def made(length: int, name: str, alphabet: str = ascii_letters + digits) -> str:
    """Characters that look random; always the same for a name, with a digit among the first."""
    stream = hashlib.shake_256(name.encode()).digest(length)
    return ("7" + "".join(alphabet[byte % len(alphabet)] for byte in stream))[:length]


HEX = "0123456789abcdef"
BASE32 = ascii_uppercase + "234567"


def _pem(kind: str) -> str:
    body = "\n".join(made(64, f"{kind}{line}") for line in range(6))
    return f"-----BEGIN {kind}-----\n{body}\n-----END {kind}-----"


SECRETS: dict[str, str] = {
    "aws-key": "AKIA" + made(16, "a", BASE32),
    "aws-temporary-key": "ASIA" + made(16, "b", BASE32),
    "github-classic": "ghp_" + made(36, "c"),
    "github-oauth": "gho_" + made(36, "d"),
    "github-server": "ghs_" + made(36, "e"),
    "github-fine-grained": "github_pat_" + made(22, "f") + "_" + made(59, "g"),
    "gitlab-personal": "glpat-" + made(20, "h"),
    "gitlab-runner": "glrt-" + made(20, "i"),
    "slack-bot": "xoxb-" + made(12, "j", digits) + "-" + made(24, "k"),
    "slack-user": "xoxp-" + made(12, "l", digits) + "-" + made(32, "m"),
    "slack-app": "xapp-1-A" + made(10, "n") + "-" + made(40, "o"),
    "slack-webhook": "hooks.slack.com/services/T" + made(9, "p") + "/B" + made(9, "q") + "/x7",
    "openai": "sk-" + made(48, "r"),
    "openai-project": "sk-proj-" + made(60, "s"),
    "openrouter": "sk-or-v1-" + made(64, "t", HEX),
    "anthropic": "sk-ant-api03-" + made(90, "u"),
    "google-api": "AIza" + made(35, "v"),
    "google-access": "ya29." + made(60, "w"),
    "google-client": "GOCSPX-" + made(28, "x"),
    "google-refresh": "1//0" + made(40, "y"),
    "stripe": "sk_live_" + made(24, "z"),
    "stripe-webhook": "whsec_" + made(32, "A"),
    "npm": "npm_" + made(36, "B"),
    "pypi": "pypi-AgE" + made(80, "C"),
    "huggingface": "hf_" + made(34, "D"),
    "groq": "gsk_" + made(52, "E"),
    "xai": "xai-" + made(80, "F"),
    "sendgrid": "SG." + made(22, "G") + "." + made(43, "H"),
    "digitalocean": "dop_v1_" + made(64, "I", HEX),
    "docker": "dckr_pat_" + made(27, "J"),
    "databricks": "dapi" + made(32, "K", HEX),
    "shopify": "shpat_" + made(32, "L", HEX),
    "vault": "hvs." + made(60, "M"),
    "jwt": "eyJ" + made(30, "N") + ".eyJ" + made(60, "O") + "." + made(43, "P"),
    "rsa-key": _pem("RSA PRIVATE KEY"),
    "openssh-key": _pem("OPENSSH PRIVATE KEY"),
    "bearer": made(40, "Q"),
    "basic": made(32, "R"),
    "url-password": made(14, "S"),
    "password": made(12, "T"),
    "quoted-password": made(12, "U"),
    "client-secret": made(24, "V"),
}
"""What must not be found, by name."""

_AROUND = {
    "slack-webhook": "https://{}",
    "bearer": "Authorization: Bearer {}",
    "basic": "Authorization: Basic {}",
    "url-password": "postgres://app:{}@db.internal:5432/main",
    "password": "password={}",
    "quoted-password": '"db_password": "{}"',
    "client-secret": "CLIENT_SECRET={}",
}

PLANTED = {name: _AROUND.get(name, "{}").format(value) for name, value in SECRETS.items()}
"""The secrets as they stand in a text."""

HARMLESS = (
    "commit 9fceb02d0ae598e95dc970b74767f19372d61af8",
    "id 550e8400-e29b-41d4-a716-446655440000 at 2026-02-20T14:30:00+00:00",
    "sha256:" + made(64, "sha", HEX),
    "data:image/png;base64," + made(4000, "png", ascii_letters + digits + "+/") + "==",
    "-----BEGIN CERTIFICATE-----\n" + made(64, "cert") + "\n-----END CERTIFICATE-----",
    "The header `-----BEGIN PRIVATE KEY-----` begins such a file.",
    "Your password: choose a long one. A secret is a secret; the token is worth its key.",
    "The bearer responsibilities of the company are many.",
    "class='sk-folding-cube-container-wrapper' and task-oriented-design-notes-2024-01",
    "https://example.org:8443/path?query=1#fragment and git@example.org:team/project.git",
    "def login(user: str, password: str = None) -> Token: return get_token(password)",
    "export DB_PASSWORD=$SECRET; url = http://user:${PASS}@host/; password=**** api_key: null",
    "pip install scikit-learn==1.5.2; risk-assessment-2024-final-version-with-numbers",
    "max_tokens: 4096, input_tokens=120, total_tokens: 300000",
    "call_0123456789abcdef0123456789abcdef toolu_01A09q90qw90lq917835lq9",
)
"""Texts that stay as they are."""
