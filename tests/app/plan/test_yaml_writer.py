"""YAML that we write is the same data for PyYAML, by either of its parsers."""

from typing import Any

import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from amplifier_app.plan.tree.yaml_writer import write_yaml

MARKS = list("ab \n\t:#-'\"|>{}[]&*!%@`,?~.=<\\0/_e\x85\u2028")
WORDS = ["yes", "Null", "1:20", "0x1f", "1e3", "2026-01-01", "<<", "=", "...", "---", "~", ".inf"]
texts = st.text(st.sampled_from(MARKS) | st.characters(exclude_categories=("Cs",)))
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | texts,
    lambda inner: st.lists(inner) | st.dictionaries(texts | st.sampled_from(WORDS), inner),
    max_leaves=12,
)


@given(values | st.lists(st.sampled_from(WORDS)))
@example({"k" * 2000: [1, {"a": "b"}], "l" * 2000: {"a": "b"}, "z": 1})
@example(["a\n\tb\n  c\n\nd\n", "a\n   \nb", "a\n  ", "\na\n", "a\n\n", [["x"], []], {"a": {}}])
@example([1e20, 1e-07, float("inf"), float("-inf"), 10**30])
def test_any_data_is_read_back_as_it_was(data: Any) -> None:
    text = write_yaml(data)
    for loader in (yaml.SafeLoader, yaml.CSafeLoader):
        assert yaml.load(text, Loader=loader) == data


def test_plain_text_is_written_without_quotes_and_several_lines_as_a_block() -> None:
    data = {"name": "a plan", "empty": [], "steps": [{"run": "./a b", "text": "one:\n\n  two\n"}]}
    assert write_yaml(data) == (
        "name: a plan\nempty: []\nsteps:\n- run: ./a b\n  text: |\n    one:\n\n      two\n"
    )
