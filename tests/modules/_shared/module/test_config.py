"""Defaults and plain settings are taken without a validator, and mean the same as with one."""

import itertools
from importlib import import_module
from typing import Any, Self

import pytest
from pydantic import Field, SecretStr, model_validator

from amplifier_modules._shared.context.config import ContextConfig
from amplifier_modules._shared.loop.config import LoopConfig
from amplifier_modules._shared.module import config as config_file
from amplifier_modules._shared.module.config import ModuleConfig, parse_config
from amplifier_modules.hooks_logging.log import LoggingConfig
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_openai.config import OpenAIConfig
from amplifier_modules.tool_bash.shell import BashConfig
from amplifier_modules.tool_filesystem.workspace import FilesystemConfig
from tests.modules.test_config_schemas import BUNDLED

VALUES: list[Any] = [
    *("x", "", "low", "5m", "ask", "é", "\ud800", "1", True, False, None),
    *(0, 1, -1, 10**30, 0.0, 0.5, 1.0, 1e400, float("nan"), [], ["x"], {}, b"x"),
]


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


class Renamed(ModuleConfig):
    seconds: int = Field(default=1, validation_alias="timeout")


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


@pytest.mark.parametrize("module_id", BUNDLED)
def test_plain_settings_mean_the_same_as_with_a_validator(
    monkeypatch: pytest.MonkeyPatch, module_id: str
) -> None:
    model = import_module(BUNDLED[module_id])._module._model()

    def parse(name: str, value: Any) -> Any:
        try:
            config = parse_config(model, {name: value}, "m")
        except ValueError as error:
            return str(error)
        found = getattr(config, name, None)
        return repr(config), config.model_fields_set, type(found), repr(found)

    given = [*itertools.product(model.model_fields, VALUES)]
    quickly = [parse(*each) for each in given]
    monkeypatch.setattr(config_file, "_plain_settings", lambda *_: None)
    for each, quick in zip(given, quickly, strict=True):
        assert parse(*each) == quick, each


def test_usual_settings_take_no_validator(monkeypatch: pytest.MonkeyPatch) -> None:
    for model in (AnthropicConfig, LoopConfig):
        monkeypatch.setattr(model, "model_validate", lambda _: pytest.fail("it was used"))
    config = {"model": "claude", "api_key": "k", "max_tokens": 5, "effort": "low", "debug": True}
    parsed = parse_config(AnthropicConfig, config, "m")
    assert (parsed.model, parsed.api_key, parsed.max_tokens) == ("claude", SecretStr("k"), 5)
    assert parse_config(LoopConfig, {"max_iterations": 3}, "m").max_iterations == 3


def test_what_is_required_is_missed() -> None:
    with pytest.raises(ValueError, match="m: config is not valid: 'path' is required"):
        parse_config(Required, {}, "m")


def test_a_field_is_set_by_its_published_name_only() -> None:
    assert parse_config(Renamed, {"timeout": 2}, "m").seconds == 2
    with pytest.raises(ValueError, match="unknown key 'seconds'"):
        parse_config(Renamed, {"seconds": 2}, "m")


def test_what_checks_the_whole_is_asked() -> None:
    with pytest.raises(ValueError, match="low must not be above high"):
        parse_config(Checked, None, "m")


@pytest.mark.parametrize("given", [[], "", 0])
def test_what_is_no_mapping_is_refused(given: object) -> None:
    with pytest.raises(ValueError, match="m: config must be a mapping"):
        parse_config(LoopConfig, given, "m")  # type: ignore[arg-type]
