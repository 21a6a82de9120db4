"""Texts that hold a secret, and texts that only look like it.

The secrets are put together here, so that no scanner of repositories takes them for real ones.
"""

import hashlib
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits


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
    "atlassian": "ATATT3xFfGF0" + made(180, "W") + "=" + made(8, "X", HEX),
    "linear": "lin_api_" + made(40, "Y"),
    "mysql-url": made(10, "Z"),
    "mysql-option": made(12, "aa"),
    "mysql-dsn": made(12, "ab"),
    "netrc": made(12, "ac"),
    "netrc-lines": made(12, "ad"),
    "new-relic": "NRAK-" + made(27, "ae", ascii_uppercase + digits),
    "perplexity": "pplx-" + made(48, "af"),
    "replicate": "r8_" + made(37, "ag"),
    "tavily": "tvly-dev-" + made(32, "ah"),
    "telegram": made(10, "ai", digits) + ":AA" + made(33, "aj"),
    "cookie": made(32, "ak"),
    "set-cookie": made(40, "al"),
    "second-cookie": made(26, "am"),
    "algolia": made(32, "an", ascii_lowercase + digits),
    "cloudflare": made(40, "ao"),
    "datadog": made(40, "ap", HEX),
    "discord": made(64, "aq", HEX),
    "doppler": "dp.pt." + made(43, "ar"),
    "dynatrace": "dt0c01." + made(24, "as") + "." + made(64, "at"),
    "fly": "fo1_" + made(43, "au"),
    "grafana": "glsa_" + made(32, "av") + "_" + made(8, "aw", HEX),
    "heroku": "HRKU-AA" + made(58, "ax"),
    "mailgun": "key-" + made(32, "ay", HEX),
    "notion": "ntn_" + made(11, "az", digits) + made(35, "ba"),
    "pinecone": "pcsk_" + made(60, "bb"),
    "planetscale": "pscale_tkn_" + made(43, "bc"),
    "postman": "PMAK-" + made(24, "bd", HEX) + "-" + made(34, "be", HEX),
    "prefect": "pnu_" + made(36, "bf"),
    "rubygems": "rubygems_" + made(48, "bg", HEX),
    "sentry": "sntryu_" + made(64, "bh", HEX),
    "square": "sq0atp-" + made(22, "bi"),
    "supabase": "sbp_" + made(40, "bj", HEX),
    "twilio": "SK" + made(32, "bk", HEX),
    "vercel": made(24, "bl"),
    "azure-storage": made(86, "bm") + "==",
    "azure-sas": made(43, "bn") + "%3D",
    "aws-signature": made(64, "bo", HEX),
    "curl-user": made(14, "bp"),
    "git-url": "ghp_" + made(36, "bq"),
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
    "mysql-url": "mysql://root:{}@127.0.0.1/shop?charset=utf8",
    "mysql-option": "mysqldump -u root -p{} shop",
    "mysql-dsn": "shop:{}@tcp(db.internal:3306)/shop",
    "netrc": "machine api.example.org login jane password {}",
    "netrc-lines": "machine api.example.org\n  login jane\n  password {}",
    "cookie": "Cookie: sessionid={}; theme=dark",
    "set-cookie": "set-cookie: sid={}; Path=/; HttpOnly",
    "second-cookie": '"Cookie": "theme=darker; csrftoken={}"',
    "algolia": "ALGOLIA_SEARCH={}",
    "cloudflare": 'cloudflare_key: "{}"',
    "datadog": "DATADOG_API={}",
    "discord": "discord_bot = '{}'",
    "mailgun": "MAILGUN={}",
    "vercel": "VERCEL_TOKEN={}",
    "azure-storage": "AccountName=x;AccountKey={};EndpointSuffix=core.windows.net",
    "azure-sas": "https://x.blob.core.windows.net/c/b?sv=2024-11-04&sig={}",
    "aws-signature": "https://b.s3.amazonaws.com/k?X-Amz-Date=1&X-Amz-Signature={}",
    "curl-user": "curl -s -u jane:{} https://api.example.org/",
    "git-url": "https://x-access-token:{}@github.com/o/r.git",
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
    "git log: 9fceb02d0ae598e95dc970b74767f19372d61af8 Merge branch 'linear'",
    "linear: 9fceb02d0ae598e95dc970b74767f19372d61af8, jira: PROJ-1234, okta, datadog and heroku",
    "adobe sha1 = 9fceb02d0ae598e95dc970b74767f19372d61af8 (40 digits, the key has 32)",
    "cache_key: 9fceb02d0ae598e95dc970b74767f19372d61af8, primary_key=id, key = 'created_at'",
    "etag: 33a64df551425fcc55e4d42a148795d9f25f89d4 x-request-id: req_011CSHoEeqs5C35K2UUqR7Fy",
    "npm_lifecycle_event=test npm_config_node_version_22 npm_package_json=/home/a/package.json",
    "LinkedIn: characteristics, responsibility; Confluent, internationalise; Twitter: acknowledgments",
    "machine learning login pages need a password policy",
    "Cookies are set by the server. Cookie: delicious.",
    "mysql -u root -p shop; mysql -P 3306 --protocol=tcp; psql -p5432; curl -u jane https://x.org",
    "curl https://example.org/a?b=c&d=0123456789 | jq .token",
    "tokenizer: 'o200k_base', eos_token: <s>, max_token: 4096, next_token = tokens.pop(0)",
    "background: url(data:image/svg+xml;base64,PHN2ZyB4bWxucz0iaHR0cDovL3d3dy53My5vcmcvMjAwMC9zdmci)",
    "sha512-z4PhNX7vuL3xVChQ1m2AB9Yg5AULVxXcg/SpIdNs6c5H0NE8XYXysP+DGNKHfuwvY7kxvUdBeoGlODJ6+SfaPg==",
    "session 20260220-143000-9fceb02d, span 00f067aa0ba902b7, trace 4bf92f3577b34da6a3ce929d0e0e4736",
    "/nix/store/0c1b6xq2gdz0w1mzn8y1j6j3qgk3p0jv-python3-3.12.8/lib/python3.12/site-packages",
    "registry.example.org/team/app@sha256:" + made(64, "img", HEX),
    "jsonschema/_keywords.py,sha256=r8_DrqAfn6QLwQnmXEggveiSU-UaIL2p2nuPINelfFc,14949",
    "AAAAB3NzaC1yc2EAAAADAQABAAABgQC7 is a public key, ssh-ed25519 AAAAC3NzaC1lZDI1NTE5AAAAI a@b",
    "read tests/e2e/test_secrets_e2e.p… at 9fceb02d… in 20260220-143000-9fce… since 2024-01-01 …",
    "call_0123456789abcdef0123456789abcdef toolu_01A09q90qw90lq917835lq9",
)
"""Texts that stay as they are."""
