"""Truncation and redaction of data for logs."""

from amplifier_core.utils.truncate import SENSITIVE_KEYS, redact_secrets, truncate_values


def test_a_string_of_exactly_the_limit_is_kept() -> None:
    assert truncate_values("abc", max_length=3) == "abc"


def test_truncation_recurses_into_dicts_and_lists_only() -> None:
    data = {"list": ["abcdef", {"deep": "abcdef"}], "tuple": ("abcdef",), "number": 7, "none": None}
    assert truncate_values(data, 2) == {
        "list": ["ab... (truncated 4 chars)", {"deep": "ab... (truncated 4 chars)"}],
        "tuple": ("abcdef",),
        "number": 7,
        "none": None,
    }


def test_truncation_does_not_change_the_original() -> None:
    inner = ["abcdef"]
    data = {"list": inner}
    result = truncate_values(data, 2)
    result["list"].append("more")
    assert data == {"list": ["abcdef"]}


def test_sensitive_keys_are_redacted_regardless_of_case_and_value() -> None:
    data: dict[str, object] = {key.upper(): {"nested": [1]} for key in SENSITIVE_KEYS}
    assert set(redact_secrets(data).values()) == {"[REDACTED]"}


def test_only_whole_keys_are_sensitive() -> None:
    data = {"token_count": 5, "author": "me", "tokens": [1], 7: "seven"}
    assert redact_secrets(data) == data


def test_redaction_recurses_into_dicts_and_lists_only() -> None:
    data = {"providers": [{"api_key": "k", "model": "m"}], "pair": ({"token": "t"},)}
    assert redact_secrets(data) == {
        "providers": [{"api_key": "[REDACTED]", "model": "m"}],
        "pair": ({"token": "t"},),
    }


def test_redaction_returns_copies() -> None:
    inner = {"api_key": "k", "list": [1]}
    result = redact_secrets({"inner": inner})
    result["inner"]["list"].append(2)
    assert inner == {"api_key": "k", "list": [1]}


def test_sensitive_keys_are_a_fixed_set() -> None:
    assert isinstance(SENSITIVE_KEYS, frozenset)
    assert {
        "api_key", "apikey", "api-key", "secret", "password", "token", "credential", "credentials",
        "private_key", "privatekey", "auth", "authorization",
    } == SENSITIVE_KEYS  # fmt: skip


def test_long_strings_are_truncated_with_a_note() -> None:
    assert truncate_values("x" * 185) == "x" * 180 + "... (truncated 5 chars)"
