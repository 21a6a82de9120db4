"""What provider-mock mounts."""

from __future__ import annotations

from typing import Any

from amplifier_modules.provider_mock.config import MockConfig
from amplifier_modules.provider_mock.provider import create
from amplifier_modules.provider_mock.script import read_replies
from amplifier_support.session_capabilities import WORKING_DIR


async def mount(coordinator: Any, settings: MockConfig) -> None:
    """Mount the provider as ``mock``; settings as in `MockConfig`.

    Raises:
        ValueError: The config or the script file is invalid.
    """
    replies = read_replies(settings, WORKING_DIR.of(coordinator))
    provider = create(settings, replies, coordinator)
    await coordinator.mount("providers", provider, name="mock")
