"""The keys of all open sessions are secrets."""

import pytest

from amplifier_app.base.redact import redact, treat_keys_as_secret
from amplifier_core.coordinator import ModuleCoordinator


@pytest.mark.parametrize("numbers", [(1, 1, 2), (1, 2, 1), (2, 1)])
def test_keys_of_sessions_with_equal_and_different_providers(numbers: tuple[int, ...]) -> None:
    sessions = [ModuleCoordinator() for _ in numbers]
    for coordinator, number in zip(sessions, numbers, strict=True):
        coordinator.config["providers"] = [{"config": {"api_key": f"key-of-number-{number}"}}]
        treat_keys_as_secret(coordinator)
    treat_keys_as_secret(without := ModuleCoordinator())
    text = redact("key-of-number-1 and key-of-number-2")
    assert text == "[REDACTED:secret] and [REDACTED:secret]"
    del without


class Incomparable:
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("it cannot be compared")

    __hash__ = None  # pyright: ignore[reportAssignmentType]


def test_keys_beside_values_that_cannot_be_compared() -> None:
    sessions = [ModuleCoordinator() for _ in range(2)]
    for number, coordinator in enumerate(sessions, 1):
        config = {"other": Incomparable(), "api_key": f"key-of-number-{number}"}
        coordinator.config["providers"] = [{"config": config}]
        treat_keys_as_secret(coordinator)
    text = redact("key-of-number-1 and key-of-number-2")
    assert text == "[REDACTED:secret] and [REDACTED:secret]"
