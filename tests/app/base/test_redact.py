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
