"""Estimates of tokens and what usage reports teach."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_core.message_models import Message, TextBlock, ToolCallBlock, Usage
from amplifier_modules._shared.providers.tokens import (
    PER_IMAGE,
    PER_MESSAGE,
    Calibration,
    estimate_message,
    estimate_text,
    reported_input,
)


def test_a_text_is_a_quarter_of_its_bytes():
    assert estimate_text("abcd" * 10) == 10
    assert estimate_text("汉字汉字") == 3
    assert estimate_text("\ud800") == 0


def test_text_counts_the_same_as_string_and_as_block():
    as_text = estimate_message({"role": "user", "content": "x" * 400})
    assert as_text == PER_MESSAGE + 100
    block = {"type": "text", "text": "x" * 400}
    assert estimate_message({"role": "user", "content": [block]}) == as_text
    assert estimate_message(Message(role="user", content=[TextBlock(text="x" * 400)])) == as_text


def test_calls_results_thinking_and_images_count():
    call = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": "x" * 400}}
    listed = estimate_message({"role": "assistant", "content": None, "tool_calls": [call]})
    assert 100 < listed < 130
    block = {"type": "tool_call", "id": "c1", "name": "f", "input": {"a": "x" * 400}}
    assert 100 < estimate_message({"role": "assistant", "content": [block]}) < 130
    result = {"type": "tool_result", "tool_call_id": "c1", "output": "x" * 400}
    assert estimate_message({"role": "function", "content": [result]}) == PER_MESSAGE + 100
    thought = {"type": "thinking", "thinking": "x" * 400, "signature": "y" * 4000}
    assert estimate_message({"role": "assistant", "content": [thought]}) == PER_MESSAGE + 100
    image = {"type": "image", "source": {"type": "base64", "data": "x" * 100_000}}
    assert estimate_message({"role": "user", "content": [image]}) == PER_MESSAGE + PER_IMAGE


def test_a_call_in_both_forms_counts_once():
    block = {"type": "tool_call", "id": "c1", "name": "f", "input": {"a": "x" * 400}}
    call = {"id": "c1", "function": {"name": "f", "arguments": json.dumps(block["input"])}}
    once = estimate_message({"role": "assistant", "content": [block]})
    assert estimate_message({"role": "assistant", "content": [block], "tool_calls": [call]}) == once
    typed = ToolCallBlock(id="c1", name="f", input={"a": "x" * 400})
    both = {"role": "assistant", "content": [typed], "tool_calls": [call]}
    assert abs(estimate_message(both) - once) <= 5


def test_endless_nesting_is_measured_without_exhausting_the_stack():
    deep: Any = "x"
    for _ in range(100_000):
        deep = [deep]
    assert estimate_message({"role": "tool", "content": deep}) >= PER_MESSAGE


def test_two_reports_give_the_factor():
    calibration = Calibration()
    calibration.observe(1_000, 3_500)
    calibration.observe(2_000, 5_000)
    assert calibration.tokens(2_000) == 5_000
    assert calibration.tokens(4_000) == 8_000
    assert calibration.estimate(8_000) == 4_000


def test_a_report_below_the_estimate_lowers_the_factor():
    calibration = Calibration()
    calibration.observe(1_000, 700)
    assert calibration.tokens(1_000) == 700
    assert calibration.tokens(2_000) == 1_400


def test_zeros_teach_nothing():
    calibration = Calibration()
    calibration.observe(0, 100)
    calibration.observe(1_000, 0)
    assert calibration.tokens(1_000) == 1_000


@given(st.lists(st.tuples(st.integers(1, 10**6), st.integers(1, 10**6)), max_size=20))
def test_the_factor_stays_within_bounds_and_reports_come_out_at_least(reports):
    calibration = Calibration()
    for estimate, tokens in reports:
        calibration.observe(estimate, tokens)
        assert Calibration.MIN_SLOPE <= calibration.slope <= Calibration.MAX_SLOPE
        assert calibration.overhead >= 0
        assert calibration.tokens(estimate) >= tokens - 1


@pytest.mark.parametrize(
    ("usage", "tokens"),
    [
        ({"input_tokens": 900, "cache_read_tokens": 800}, 900),
        ({"input_tokens": 10, "cache_read_tokens": 800, "cache_write_tokens": 90}, 900),
        (Usage(input_tokens=5, output_tokens=1, total_tokens=6), 5),
        ({"input_tokens": None}, 0),
        ({}, 0),
        (None, 0),
        ("usage", 0),
    ],
)
def test_input_tokens_are_read_from_any_report(usage, tokens):
    assert reported_input(usage) == tokens
