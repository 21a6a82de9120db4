from hypothesis import given
from hypothesis import strategies as st

from amplifier_support.text import common_length


@given(st.text("ab"), st.text("ab"), st.text("ab"))
def test_the_common_length_is_that_of_the_longest_common_beginning(
    start: str, left: str, right: str
) -> None:
    length = common_length(start + left, start + right)
    assert (start + left)[:length] == (start + right)[:length]
    assert (start + left)[length : length + 1] != (start + right)[
        length : length + 1
    ] or length == (min(len(start + left), len(start + right)))


def test_long_texts_are_not_compared_item_by_item() -> None:
    class Text(bytes):
        def __iter__(self) -> None:  # type: ignore[override]
            raise AssertionError

    text = b"x" * 1_000_000
    assert common_length(Text(text + b"a"), Text(text + b"b")) == len(text)
