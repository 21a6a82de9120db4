"""Amounts of money as providers report them."""

from decimal import Decimal

import pytest

from amplifier_support.usage import dollars


@pytest.mark.parametrize("value", ["0.25", 0.25, Decimal("0.25")])
def test_valid_amounts(value: object) -> None:
    assert dollars(value) == Decimal("0.25")


@pytest.mark.parametrize("value", ["1e999999999", "1e-999999999", "0e999999999", "NaN", "-1", True])
def test_invalid_amounts_are_unknown(value: object) -> None:
    assert dollars(value) is None, "the digits of a huge exponent would fill the memory"
