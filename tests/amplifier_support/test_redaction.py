"""What counts as a secret, what does not, and what that costs."""

import base64
import dataclasses
import json
import time
from typing import Any
from urllib.parse import quote

import pytest

from amplifier_core.models import ToolResult
from amplifier_support import redaction
from amplifier_support.redaction import Redactor, configured_secrets, redact_config
from amplifier_support.secret_shapes import PII, secret_shapes
from tests.support import planted

REDACTOR = Redactor()


FORMS = (
    *("{}", "see ({}), and", "first\n{}\nlast", "'{}'", "a {} b {} c"),
    *("\x1b[01;31m\x1b[K{}\x1b[m\x1b[K", "\x1b[38;5;196m{} \x1b[0m", "[1;31m{} [0m"),
)


def test_planted_secrets_are_replaced() -> None:
    for name, secret in planted.SECRETS.items():
        for form in FORMS:
            redacted = REDACTOR.text(form.replace("{}", planted.PLANTED[name]))
            assert secret not in redacted, name
            assert redacted.count("[REDACTED:") == form.count("{}"), name
            assert REDACTOR.text(redacted) == redacted, name
        # Also in JSON inside a string.
        text = json.dumps(json.dumps({"arguments": f"first\n{planted.PLANTED[name]}\nlast"}))
        escaped = json.dumps(json.dumps(secret)[1:-1])[1:-1]
        assert escaped in text, name
        assert escaped not in REDACTOR.text(text), name


def test_harmless_text_is_not_redacted() -> None:
    for text in planted.HARMLESS:
        assert REDACTOR.text(text) is text


def test_the_label_of_a_secret_is_not_redacted() -> None:
    reported = REDACTOR.text(planted.PLANTED["url-password"] + " " + planted.PLANTED["bearer"])
    assert reported == (
        "postgres://app:[REDACTED:url-password]@db.internal:5432/main "
        "Authorization: Bearer [REDACTED:bearer]"
    )


def test_known_values_come_first_and_also_as_json_writes_them() -> None:
    redactor = Redactor(["ghp_short", 'odd"value\\here'])
    assert redactor.text("ghp_short") == "[REDACTED:secret]"
    assert redactor.text(json.dumps({"a": 'odd"value\\here'})) == '{"a": "[REDACTED:secret]"}'


def test_a_value_with_many_references_to_itself_is_looked_into_in_bounded_time() -> None:
    node: dict[str, object] = {"name": "hunter2222"}
    node |= {"left": node, "right": [node, node]}
    cut, name = "<dict nested too deeply>", "[REDACTED:secret]"
    below = {"name": name, "left": cut, "right": "<list nested too deeply>"}
    assert Redactor(["hunter2222"], shapes=()).value(node) == {
        "name": name,
        "left": {"name": name, "left": cut, "right": [cut, cut]},
        "right": [below, below],
    }


def test_known_values_are_found_in_other_encodings() -> None:
    value = "p@ss/wörd 1+2"
    raw = value.encode()
    encoded = [base64.b64encode(lead + raw + b"!!") for lead in (b"", b"u:", b"user:", b"use:")]
    forms = [quote(value, safe=""), "\0".join(value), *(one.decode() for one in encoded)]
    forms += [one.decode().replace("+", "-").replace("/", "_") for one in encoded]
    redactor = Redactor([value], shapes=())
    for form in forms:
        shown = redactor.text(f"x {form} y")
        # Of Base64 a few characters at its ends belong to what is next to it.
        assert "[REDACTED:secret]" in shown
        assert len(shown) < 40, shown
    assert redactor.text("cGFzc3dvcmQ= p%40ss") == "cGFzc3dvcmQ= p%40ss"


def test_personal_data_is_looked_for_on_demand_only() -> None:
    text = "write to jane.doe@example.org or call +1 (555) 010-9999, 555-010-9999"
    assert REDACTOR.text(text) is text
    assert Redactor(shapes=PII).text(text) == (
        "write to [REDACTED:email] or call [REDACTED:phone], [REDACTED:phone]"
    )


@dataclasses.dataclass(frozen=True)
class _Frozen:
    text: str


def test_only_what_changes_is_copied() -> None:
    secret = planted.SECRETS["openai"]
    kept = {"deep": ["text", 1]}
    value: dict[str, Any] = {
        "kept": kept,
        "list": [secret],
        "tuple": (secret, 1),
        "model": ToolResult(output={"text": secret}),
        "frozen": _Frozen(secret),
        secret: 1,
        "password": "x",
    }
    redacted = REDACTOR.value(value)
    assert redacted["kept"] is kept
    assert secret not in repr(redacted)
    assert isinstance(redacted["model"], ToolResult)
    assert redacted["password"] == "[REDACTED:secret]"
    assert value["model"].output == {"text": secret}
    assert value["frozen"].text == secret
    assert REDACTOR.value(kept) is kept


def test_keys_and_paths_may_be_left_alone() -> None:
    secret = planted.SECRETS["openai"]
    redactor = Redactor(allowlist=["id", "usage.note"])
    value = {"id": secret, "usage": {"note": secret, "other": secret}}
    assert redactor.value(value) == {
        "id": secret,
        "usage": {"note": secret, "other": "[REDACTED:openai-key]"},
    }


def test_data_that_refers_to_itself_is_survived() -> None:
    loop: dict[str, Any] = {"text": planted.SECRETS["openai"]}
    loop["self"] = loop
    assert REDACTOR.value(loop)["self"]["text"] == "[REDACTED:openai-key]"


def test_secrets_of_a_config_are_those_under_telling_keys() -> None:
    config = [{"module": "x", "config": {"api_key": "long-enough-1", "github_token": "long-two-2"}}]
    assert configured_secrets(config) == ["long-enough-1", "long-two-2"]
    assert (
        configured_secrets([{"config": {"model": "a-long-model-name", "api_key": "short"}}]) == []
    )
    assert configured_secrets({"token_env": "GITHUB_TOKEN", "token": "GITHUB_TOKEN_1"}) == [
        "GITHUB_TOKEN_1"
    ]


def test_names_of_variables_stay() -> None:
    references = {"api_key": "${MY_SECRET_API_KEY}", "token": "$GITHUB_TOKEN", "x_key": "${A}${B}"}
    assert configured_secrets(references) == []
    assert configured_secrets({"api_key": "${KEY:-a-default-secret}"}) == [
        "${KEY:-a-default-secret}"
    ]
    assert REDACTOR.value(references) == references
    for code in (
        "password = os.environ['DB_PASSWORD_1']",
        "const apiKey = process.env.API_KEY_2",
        "api_key: ENV['API_KEY_2']",
    ):
        assert REDACTOR.text(code) == code
    assert "hunter" not in REDACTOR.text("password = ENVhunter2secret")


HINTS = [
    *(
        "eyJ",
        "eyJaaaaaaaaaa.",
        "eyJaaaaaaaaaa.eyJaaaaaaaaaa",
        "-----BEGIN PRIVATE KEY-----",
        "-----",
    ),
    *("-----BEGIN PRIVATE KEY-----a", "a://", "a://b:", "://a:b", "password=", "password: ", "pwd"),
    *(
        "Bearer ",
        "bearer a",
        "bearer aaaaaaaaaaaaaaaa",
        "Authorization: Basic ",
        "sk-",
        "sk-a",
        "xox",
    ),
    *(
        "hooks.slack.com/services/",
        "a@",
        "a.",
        "a@a.",
        "1-",
        "+1 ",
        "(1) ",
        "1",
        "a",
        "\\n",
        "secret",
    ),
    *("-----BEGIN PRIVATE KEY-----" + "A" * 20 + "\\n", "SG.", "ya29.", "AKIA", "=", " ", '\\"'),
]


def test_a_cut_secret_leaves_at_most_a_few_characters() -> None:
    for name, secret in planted.SECRETS.items():
        text = planted.PLANTED[name]
        # Not secret: the host of a webhook, the number of a bot, the first and last line of a key.
        body, _, last = secret.rpartition("\n")
        shown_anyway = len("hooks.slack.com/services/" if name == "slack-webhook" else "")
        shown_anyway += secret.find(":") + 1
        shown_anyway += body.find("\n") + 1
        start = text.index(secret) + shown_anyway
        end = text.index(secret) + len(secret) - (len(last) if body else 0)
        around = text.replace(secret, "")
        step = max(1, len(secret) // 20)
        for cut in range(start + 24, end, step):
            for mark in ("…", "\n[… 9 bytes are cut out here …]\nnext", "... (truncated 9 chars)"):
                shown = REDACTOR.text(f"a {text[:cut]}{mark}").replace(around, "")
                assert text[start : start + 24] not in shown, name
                assert text[cut - 10 : cut] not in shown, name
        for cut in range(start + 8, end - 8, step):
            shown = REDACTOR.text(f"a\n[… 9 bytes are cut out here …]\n{text[cut:]}\nnext")
            assert text[cut : cut + 8] not in shown, name


@pytest.mark.timeout(60)
@pytest.mark.parametrize("hint", [*HINTS, "a://b:"])
def test_the_time_grows_with_the_length_of_a_text_made_to_be_slow(hint: str) -> None:
    redactor = Redactor(shapes=[*secret_shapes(), *PII])
    hints = " ".join(hint for shape in secret_shapes() for hint in shape.hints)
    secret = planted.SECRETS["github-classic"]

    def seconds(length: int) -> float:
        text = "\n".join([hint * (length // len(hint)), hints, secret])
        started = time.thread_time()
        assert secret not in redactor.text(text)
        return time.thread_time() - started

    # Four times the length takes four times as long; what reads a run again from each of its
    # characters, sixteen times.
    assert any(seconds(20_000) < 10 * seconds(5_000) for _ in range(5))


def test_long_encoded_data_is_not_taken_for_keys_but_known_values_in_it_are() -> None:
    data = "AKIAABCDEFGHIJKLMNOP/" * 5000
    assert REDACTOR.text(data) is data
    assert REDACTOR.text(f"{data} ").count("[REDACTED:aws-access-token]") == 5000
    assert "hunter2hunter2" not in Redactor(["hunter2hunter2"]).text(f"{data}hunter2hunter2")


def test_what_is_looked_at_again_is_treated_as_before() -> None:
    redactor = Redactor(["hunter2-hunter2"])
    for _ in range(2):
        clean = "".join(["turn", "_id"])  # another object each time
        assert redactor.text(clean) is clean
        assert redactor.text("a hunter2-hunter2") == "a [REDACTED:secret]"
    for number in range(10_000):
        redactor.text(f"id-{number}")
    kept, most = redactor._clean, redaction._REMEMBERED  # pyright: ignore[reportPrivateUsage]
    assert len(kept) <= most


def test_a_secret_is_found_as_deep_as_the_input_of_a_tool_call_may_be() -> None:
    value: Any = "known-secret-value"
    for _ in range(60):
        value = {"list": [value]}
    assert "known-secret-value" not in repr(Redactor(["known-secret-value"]).value(value))


def test_a_plan_is_shown_without_secrets_and_otherwise_unchanged() -> None:
    plan = {
        "session": {"max_tokens": 5, "token_budget": 9, 1: None},
        "providers": [{"config": {"api_key": {"from": "vault"}, "github_token": "abc", "auth": 1}}],
        "tools": ({"url": "https://user:pw@host/x?a=b", "env": {"MY_KEY": "abc"}},),
        "text": "uses sk-0123456789 and sk-0123456789-long and short",
    }
    copy = redact_config(plan, ["sk-0123456789", "sk-0123456789-long", "short"])
    assert copy == {
        "session": {"max_tokens": 5, "token_budget": 9, 1: None},
        "providers": [
            {
                "config": {
                    "api_key": "[REDACTED]",
                    "github_token": "[REDACTED]",
                    "auth": "[REDACTED]",
                }
            }
        ],
        "tools": [{"url": "https://[REDACTED]@host/x?a=b", "env": {"MY_KEY": "[REDACTED]"}}],
        "text": "uses [REDACTED] and [REDACTED] and short",
    }
    assert plan["session"] is not copy["session"]
