"""Reporting the module and source line of a failure."""

import asyncio
import functools
import importlib
import inspect
import logging
import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from pydantic import BaseModel, ConfigDict

from amplifier_core._foreign import (
    add_hint,
    belonging_to,
    blame,
    current_owner,
    describe_exception,
    describe_foreign,
    describe_owner,
    describe_place,
    find_origin,
    find_root,
    log_failure,
    required_arguments,
    where_defined,
)
from amplifier_core.llm_errors import LLMError

FAILING = """
def outer():
    inner()

def inner():
    int("x")
"""


def raised_by(path: Path) -> Exception:
    namespace: dict[str, Any] = {}
    exec(compile(path.read_text(), str(path), "exec"), namespace)
    with pytest.raises(ValueError, match="invalid literal") as caught:
        namespace["outer"]()
    return caught.value


def test_the_innermost_line_of_the_module_is_reported(tmp_path: Path) -> None:
    file = tmp_path / "package" / "deep.py"
    file.parent.mkdir()
    file.write_text(FAILING)
    error = raised_by(file)
    assert describe_place(error, tmp_path / "package") == "package/deep.py, line 6, in inner"
    assert describe_exception(error, file).endswith("with base 10: 'x' (deep.py, line 6, in inner)")
    assert describe_place(error, tmp_path / "other") == ""
    assert describe_place(error, None) == ""
    assert (
        describe_exception(error, None) == "ValueError: invalid literal for int() with base 10: 'x'"
    )


def test_a_syntax_error_is_reported_with_its_own_line(tmp_path: Path) -> None:
    file = tmp_path / "broken.py"
    with pytest.raises(SyntaxError) as caught:
        compile("x = (\n", str(file), "exec")
    assert (
        describe_exception(caught.value, file)
        == "SyntaxError: '(' was never closed (broken.py, line 1)"
    )
    assert (
        describe_exception(caught.value, tmp_path / "other") == "SyntaxError: '(' was never closed"
    )


def test_an_error_whose_str_raises_is_described() -> None:
    class Odd(Exception):
        def __str__(self) -> str:
            raise OSError

    assert describe_exception(Odd(), None) == "Odd: (its text is not available)"


def test_pydantic_errors_are_described_in_one_line_without_the_input() -> None:
    class Config(BaseModel):
        model_config = ConfigDict(extra="forbid")
        limit: int

    with pytest.raises(ValueError, match="2 validation errors") as caught:
        Config.model_validate({"limit": "secret", "lmit": "secret"})
    description = describe_exception(caught.value, None)
    assert description == (
        "ValidationError: limit: Input should be a valid integer, unable to parse string as an "
        "integer; lmit: Extra inputs are not permitted"
    )
    with pytest.raises(ValueError, match="1 validation error") as caught:
        Config.model_validate("secret")
    assert describe_exception(caught.value, None).startswith(
        "ValidationError: Config: Input should be"
    )


def test_the_root_of_a_module_is_its_top_level_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("regular_root/inner", "namespace_root/inner"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "__init__.py").touch()
    (tmp_path / "regular_root" / "__init__.py").touch()
    (tmp_path / "single_root.py").touch()
    monkeypatch.syspath_prepend(str(tmp_path))
    names = ("regular_root.inner", "namespace_root.inner", "single_root")
    try:
        roots = [find_root(importlib.import_module(name)) for name in names]
    finally:
        for name in [name for name in sys.modules if name.partition(".")[0].endswith("_root")]:
            del sys.modules[name]
    assert roots == [
        tmp_path / "regular_root",
        tmp_path / "namespace_root" / "inner",
        tmp_path / "single_root.py",
    ]
    assert find_root(ModuleType("made_up")) is None
    assert find_root(sys) is None


@pytest.fixture
def guard(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    folder = tmp_path / "acme_guard"
    folder.mkdir()
    (folder / "__init__.py").write_text(
        "class Guard:\n"
        "    def check(self, event, data):\n"
        "        raise KeyError('x')\n"
        "\n"
        "def needs_two(event, data):\n"
        "    return None\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    module = importlib.import_module("acme_guard")
    monkeypatch.delitem(sys.modules, "acme_guard")
    monkeypatch.setitem(sys.modules, "acme_guard", module)
    return module


def test_a_foreign_exception_names_kind_module_and_line(guard: ModuleType) -> None:
    handler = guard.Guard().check
    with pytest.raises(KeyError) as caught:
        handler("tool:pre", {})
    expected = "hook 'acme-guard' raised KeyError: 'x' (acme_guard/__init__.py, line 3, in check)"
    for obj in (handler, functools.partial(handler, "tool:pre"), guard.Guard(), guard.Guard):
        assert describe_foreign(caught.value, kind="hook", name="acme-guard", obj=obj) == expected
    unnamed = describe_foreign(caught.value, kind="tool", obj=handler, call="get_schema")
    assert unnamed.startswith("tool 'acme_guard': get_schema() raised KeyError: 'x' (acme_guard/")


def test_blame_tells_mistakes_from_failures(guard: ModuleType) -> None:
    with pytest.raises(KeyError) as caught:
        guard.Guard().check("tool:pre", {})
    wrapped, failure, invalid = LLMError("cut off"), ValueError("no"), TypeError("answered None")
    wrapped.__cause__ = caught.value
    for error, fault in ((wrapped, ""), (failure, ""), (invalid, "answered None")):
        blame(error, kind="provider", name="acme", obj=guard.Guard(), fault=fault)
    origins = [find_origin(error) for error in (wrapped, failure, invalid)]
    assert [origin and origin.is_mistake for origin in origins] == [True, False, False]
    origin = find_origin(wrapped)
    assert origin is not None
    assert origin.text.startswith("provider 'acme' raised KeyError: 'x' (acme_guard/")
    add_hint(wrapped, "use another version")
    hinted = find_origin(wrapped)
    assert hinted is not None
    assert hinted.hint == "use another version"
    unknown = ValueError("no one is to blame")
    add_hint(unknown, "none")
    assert find_origin(unknown) is None


def test_blame_keeps_the_exception_and_the_first_origin(guard: ModuleType) -> None:
    error = RuntimeError("backend down")
    assert find_origin(error) is None
    blame(error, kind="provider", name="acme", obj=guard.Guard())
    blame(error, kind="orchestrator", name="loop-basic", obj=object())
    origin = find_origin(error)
    assert origin is not None
    assert (origin.kind, origin.name) == ("provider", "acme")
    assert "RuntimeError: backend down" in origin.text
    assert str(error) == "backend down"


class Guard:
    """Handlers in the forms that modules use."""

    def on_tool(self) -> None: ...

    def __call__(self) -> None: ...


HERE = "tests.core.test_foreign"


def test_a_definition_created_at_run_time_is_named() -> None:
    namespace: dict[str, Any] = {"__name__": HERE}
    exec("def made(): ...", namespace)
    assert where_defined(namespace["made"]) == f"{HERE}.made"


async def test_tasks_started_by_a_module_belong_to_it() -> None:
    async def owner() -> str:
        await asyncio.sleep(0)
        return str(current_owner())

    with belonging_to("tool", "tool-a"):
        assert str(current_owner()) == "tool 'tool-a'"
        task = asyncio.create_task(owner())
        with belonging_to("hook", "hooks-b"):
            assert describe_owner(print, current_owner()) == "hook 'hooks-b'"
    assert current_owner() is None
    assert await task == "tool 'tool-a'"


def close(needed: int) -> None: ...


class Closer:
    def __call__(self, needed: int) -> None: ...


@pytest.mark.parametrize(
    ("code", "line", "name"),
    [
        (close, close.__code__.co_firstlineno, "close"),
        (Closer(), Closer.__call__.__code__.co_firstlineno, "__call__"),
    ],
)
def test_a_failure_is_logged_in_one_line_with_the_traceback_at_debug_level(
    caplog: pytest.LogCaptureFixture, code: Any, line: int, name: str
) -> None:
    with caplog.at_level(logging.DEBUG), belonging_to("tool", "tool-a"):
        try:
            code()
        except TypeError as raised:
            error = raised.with_traceback(None)  # as if the kernel had called it
            logger = logging.getLogger(__name__)
            log_failure(logger, "Cleanup 'close'", code, current_owner(), error, "skipped")
    failure, traceback = caplog.records
    assert failure.levelname == "ERROR"
    text = failure.getMessage()
    assert text.startswith("Cleanup 'close' of tool 'tool-a' failed: TypeError: ")
    assert text.endswith(f" (tests/core/test_foreign.py, line {line}, in {name}); skipped")
    assert (traceback.levelname, bool(traceback.exc_info)) == ("DEBUG", True)


class Cleanups:
    def method(self) -> None: ...
    def needs(self, one: int, *, two: int) -> None: ...
    def takes_any(*everything: object) -> None: ...

    @classmethod
    def of_class(cls) -> None: ...
    @staticmethod
    def static(one: int) -> None: ...
    def __call__(self, given: int) -> None: ...


@functools.wraps(Cleanups.static)
def wrapper() -> None: ...


def with_signature() -> None: ...


with_signature.__signature__ = inspect.signature(lambda declared: declared)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("function", "required"),
    [
        (lambda: None, ""),
        (lambda one: one, "'one'"),
        (lambda one=1: one, ""),
        (lambda *, name: name, "'name'"),
        (lambda *more, **others: None, ""),
        (Cleanups().method, ""),
        (Cleanups.method, "'self'"),
        (Cleanups().needs, "'one', 'two'"),
        (Cleanups().takes_any, ""),
        (Cleanups().of_class, ""),
        (Cleanups.of_class, ""),
        (Cleanups.static, "'one'"),
        (Cleanups(), "'given'"),
        (functools.partial(Cleanups.static, 1), ""),
        (wrapper, "'one'"),
        (with_signature, "'declared'"),
        (print, ""),
        ("not callable", ""),
    ],
)
def test_required_arguments_are_those_of_the_signature(function: Any, required: str) -> None:
    assert required_arguments(function) == required
