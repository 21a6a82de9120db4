"""Wherever a model's text is cut into pieces, no part of a secret is shown."""

from hypothesis import given
from hypothesis import strategies as st

from amplifier_modules.hooks_redaction.hook import StreamRedactor
from amplifier_support.redaction import Redactor
from tests.support import planted

REDACTOR = Redactor()
READABLE = 5
"""Characters of a secret in a row that must not be shown."""


@given(
    st.sampled_from(sorted(planted.PLANTED)),
    st.sampled_from(["{}", "Found it: {} and more.", "one\n{}\ntwo", '{"text": "{}"}', "`{}`, x"]),
    st.lists(st.integers(1, 40), min_size=1, max_size=30),
)
def test_a_secret_cut_anywhere_is_not_readable_in_parts(
    name: str, form: str, sizes: list[int]
) -> None:
    secret = planted.SECRETS[name]
    text = form.replace("{}", planted.PLANTED[name])
    lines = [line for line in secret.splitlines() if line.startswith("-----")]
    around = "\n".join([text.replace(secret, ""), REDACTOR.text(text), *lines])
    stream, shown, at = StreamRedactor(REDACTOR), "", 0
    while at < len(text):
        size = sizes[at % len(sizes)]
        shown += stream.feed(text[at : at + size])
        at += size
    shown += stream.flush()
    parts = {secret[i : i + READABLE] for i in range(len(secret) - READABLE + 1)}
    assert not [part for part in parts if part in shown and part not in around]
    assert "[REDACTED:" in shown


def test_a_known_value_of_several_words_is_not_shown_word_by_word() -> None:
    secret = "correct horse battery staple"
    stream = StreamRedactor(Redactor([secret, "ect or"]))
    pieces = ["It is corr", "ect horse ", "battery ", "staple. A correct ", "horse is", " no key."]
    shown = [*map(stream.feed, pieces), stream.flush()]
    assert "".join(shown) == "It is [REDACTED:secret]. A correct horse is no key."
    assert shown[0] == "It is "
