"""Settings of modules, and what is said about wrong ones."""

from typing import Any

import pytest
from pydantic import AliasChoices, BaseModel, ConfigDict, Field

from amplifier_core.testing import MockCoordinator
from amplifier_extras import loop_events
from amplifier_modules import loop_basic, loop_streaming
from amplifier_modules._shared.module.config import parse_config


class Inner(BaseModel):
    model_config = ConfigDict(extra="forbid")
    a: int


class Sample(BaseModel):
    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    max_things: int = Field(default=3, ge=0)
    model: str | None = Field(default=None, validation_alias=AliasChoices("model", "default_model"))
    parts: list[Inner] = []
    api_key: int | None = None


def message(config: Any, model: type[BaseModel] = Sample) -> str:
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is what is tested
        parse_config(model, config, "some-module")
    return str(caught.value)


def test_aliases_are_accepted() -> None:
    assert parse_config(Sample, {"default_model": "m"}, "some-module").model == "m"


def test_an_unknown_key_is_named_with_the_nearest_known_one() -> None:
    assert message({"max_thing": 1}) == (
        "some-module: config is not valid: unknown key 'max_thing', did you mean 'max_things'? "
        "(allowed: api_key, default_model, max_things, model, parts)"
    )


def test_a_key_unlike_any_other_gets_no_suggestion() -> None:
    assert "did you mean" not in message({"zzz": 1})


def test_a_wrong_value_names_its_key_and_rule() -> None:
    assert "'max_things': input should be greater than or equal to 0" in message({"max_things": -1})


def test_nested_problems_say_where() -> None:
    said = message({"parts": [{"a": 1}, {"b": 2}]})
    assert "'parts[1].a' is required" in said
    assert "unknown key 'parts[1].b'" in said


def test_values_are_not_repeated() -> None:
    """A value in the wrong place may be a secret; the chained error would show it as well."""
    with pytest.raises(ValueError) as caught:  # noqa: PT011 - the text is what is tested
        parse_config(Sample, {"api_key": "sk-very-secret"}, "some-module")
    assert "sk-very-secret" not in str(caught.value)
    assert caught.value.__context__ is None
    assert caught.value.__cause__ is None


@pytest.mark.parametrize("module", [loop_basic, loop_streaming, loop_events])
class TestLoops:
    async def test_mount_puts_the_orchestrator_in_its_place(self, module: Any) -> None:
        coordinator = MockCoordinator()
        await module.mount(coordinator, {"max_iterations": 7})
        assert coordinator.get("orchestrator").config.max_iterations == 7

    async def test_an_empty_default_counts_as_none(self, module: Any) -> None:
        coordinator = MockCoordinator()
        await module.mount(coordinator, {"default_provider": "", "default_model": ""})
        config = coordinator.get("orchestrator").config
        assert (config.default_provider, config.default_model) == (None, None)
