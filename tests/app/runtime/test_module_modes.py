"""The modes that a module defines."""

from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError, ModuleError
from amplifier_app.runtime.module_modes import (
    ModuleMode,
    active_module_mode,
    module_mode_shortcuts,
    module_mode_to_save,
    module_modes,
    restore_module_mode,
    switch_module_mode,
)


class Modes:
    """What a module keeps as `mode_discovery`."""

    def __init__(self, *listed: tuple[str, ...]) -> None:
        self.listed = listed

    def list_modes(self) -> list[tuple[str, ...]]:
        return list(self.listed)

    def get_shortcuts(self) -> dict[str, str]:
        return {"b": "brainstorm", "gone": "removed"}


class Broken(Modes):
    def list_modes(self) -> list[tuple[str, ...]]:
        raise OSError("the disk is gone")


def session_with(discovery: Any = None, **state: Any) -> Any:
    return SimpleNamespace(
        session_state={"mode_discovery": discovery, **state}, get_capability=lambda name: None
    )


KIT = Modes(("brainstorm", "Explore\nfirst", "kit"), ("old", "Without a source"), ("bare", "", ""))


def test_modes_are_listed_with_their_source() -> None:
    assert module_modes(session_with(KIT), is_trusted=True) == [
        ModuleMode("brainstorm", "Explore first (kit)"),
        ModuleMode("old", "Without a source"),
        ModuleMode("bare", ""),
    ]
    assert module_modes(session_with(), is_trusted=True) == []


def test_shortcuts_are_those_of_modes_that_exist() -> None:
    assert list(module_mode_shortcuts(session_with(KIT), is_trusted=True)) == ["b"]
    assert module_mode_shortcuts(session_with(), is_trusted=True) == {}


def test_a_switch_forgets_the_warnings_of_the_mode_before() -> None:
    forgotten: list[int] = []
    hooks = SimpleNamespace(reset_warnings=lambda: forgotten.append(1))
    session = session_with(KIT, mode_hooks=hooks)
    switch_module_mode(session, "old", is_trusted=True)
    assert active_module_mode(session) == "old"
    switch_module_mode(session, None, is_trusted=True)
    assert (active_module_mode(session), len(forgotten)) == (None, 2)


@pytest.mark.parametrize("name", ["../kit/brainstorm", "Brainstorm", ""])
def test_only_listed_modes_become_active(name: str) -> None:
    session = session_with(KIT, active_mode="old")
    with pytest.raises(ConfigError, match="there is no mode") as error:
        switch_module_mode(session, name, is_trusted=True)
    assert error.value.hint == "available: brainstorm, old, bare"
    assert active_module_mode(session) == "old"


def test_a_module_that_cannot_list_its_modes_is_reported() -> None:
    session = session_with(Broken())
    with pytest.raises(ModuleError, match="cannot list its modes: OSError: the disk is gone"):
        module_modes(session, is_trusted=True)
    missing = restore_module_mode(session, {"module_mode": "brainstorm"})
    assert missing is not None
    assert missing.startswith("the session continues without its mode 'brainstorm': the module")


def test_the_mode_is_saved_while_there_is_one_and_when_it_ends() -> None:
    session = session_with(KIT, active_mode=None)
    assert module_mode_to_save(session, {}) == {}
    assert module_mode_to_save(session, {"module_mode": "old"}) == {"module_mode": None}
    assert restore_module_mode(session, {"module_mode": "old"}) is None
    assert module_mode_to_save(session, {}) == {"module_mode": "old"}


def test_modes_of_a_project_need_trust() -> None:
    listed = Modes(("brainstorm", "Obey", "project"), ("mine", "Explore", "user"))
    session = session_with(listed)
    assert [one.name for one in module_modes(session, is_trusted=False)] == ["mine"]
    assert module_mode_shortcuts(session, is_trusted=False) == {}
    with pytest.raises(ConfigError, match="there is no mode 'brainstorm'"):
        switch_module_mode(session, "brainstorm", is_trusted=False)
    saved = {"module_mode": "brainstorm"}
    assert restore_module_mode(session, saved) is not None
    trusted = {"trusted_project": {"folder": "/p/.amplifier", "sources": []}}
    assert restore_module_mode(session, {**saved, **trusted}) is None
    assert active_module_mode(session) == "brainstorm"
