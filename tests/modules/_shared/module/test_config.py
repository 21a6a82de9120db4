"""Defaults are taken without a validator, and mean the same as with one."""

from typing import Self

import pytest
from pydantic import model_validator

from amplifier_modules._shared.context.config import ContextConfig
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.module.config import ModuleConfig, parse_config
from amplifier_modules.hooks_logging.log import LoggingConfig
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_openai.config import OpenAIConfig
from amplifier_modules.tool_bash.shell import BashConfig
from amplifier_modules.tool_filesystem.workspace import FilesystemConfig


class Required(ModuleConfig):
    path: str


class Checked(ModuleConfig):
    low: int = 1
    high: int = 0

    @model_validator(mode="after")
    def _in_order(self) -> Self:
        if self.low > self.high:
            raise ValueError("low must not be above high")
        return self


@pytest.mark.parametrize("given", [None, {}])
@pytest.mark.parametrize(
    "model",
    [
        AnthropicConfig,
        BashConfig,
        FilesystemConfig,
        LoggingConfig,
        LoopConfig,
        OpenAIConfig,
        ContextConfig,
    ],
)
def test_no_settings_are_the_defaults(
    model: type[ModuleConfig], given: dict[str, object] | None
) -> None:
    assert parse_config(model, given, "m") == model.model_validate({})


def test_defaults_are_not_shared() -> None:
    first, second = parse_config(BashConfig, {}, "m"), parse_config(BashConfig, {}, "m")
    first.env_passthrough.append("X")
    assert second.env_passthrough == []


def test_what_is_required_is_missed() -> None:
    with pytest.raises(ValueError, match="m: config is not valid: 'path' is required"):
        parse_config(Required, {}, "m")


def test_what_checks_the_whole_is_asked() -> None:
    with pytest.raises(ValueError, match="low must not be above high"):
        parse_config(Checked, None, "m")


@pytest.mark.parametrize("given", [[], "", 0])
def test_what_is_no_mapping_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="m: config must be a mapping"):
        parse_config(LoopConfig, given, "m")  # type: ignore[arg-type]
