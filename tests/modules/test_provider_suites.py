"""The suites every module author runs, on the providers that ask a service or run an engine."""

from __future__ import annotations

from collections.abc import AsyncIterator
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_core.validation.behavioral import ProviderBehaviorTests
from amplifier_core.validation.structural import ProviderStructuralTests
from tests.support.llm_server import ScriptedLLM


class Asked:
    """A provider mounted onto the scripted server, with a key in the environment."""

    package = ""
    config: dict[str, Any] = {}  # noqa: RUF012 - never changed

    @pytest.fixture
    def module_path(self, monkeypatch: pytest.MonkeyPatch) -> Path:
        for vendor in ("ANTHROPIC", "OPENAI"):
            monkeypatch.setenv(f"{vendor}_API_KEY", "test-key")
        return Path(str(import_module(self.package).__file__)).parent

    @pytest.fixture
    async def provider_module(self) -> AsyncIterator[Any]:
        async with ScriptedLLM([]) as server:
            coordinator = MockCoordinator()
            settings = {"api_key": "k", "base_url": server.base_url, **self.config}
            cleanup = await import_module(self.package).mount(coordinator, settings)
            [provider] = coordinator.get("providers").values()
            yield provider
            await cleanup()


class Anthropic(Asked):
    package = "amplifier_modules.provider_anthropic"


class OpenAI(Asked):
    package = "amplifier_modules.provider_openai"


class Responses(OpenAI):
    config = {"api": "responses"}  # noqa: RUF012 - never changed


class Local:
    @pytest.fixture
    def module_path(self) -> Path:
        return Path(str(import_module("amplifier_modules.provider_local").__file__)).parent


class TestAnthropicBehaviour(Anthropic, ProviderBehaviorTests):
    pass


class TestAnthropicStructure(Anthropic, ProviderStructuralTests):
    pass


class TestOpenAIBehaviour(OpenAI, ProviderBehaviorTests):
    pass


class TestOpenAIStructure(OpenAI, ProviderStructuralTests):
    pass


class TestResponsesBehaviour(Responses, ProviderBehaviorTests):
    pass


class TestLocalBehaviour(Local, ProviderBehaviorTests):
    pass


class TestLocalStructure(Local, ProviderStructuralTests):
    pass
