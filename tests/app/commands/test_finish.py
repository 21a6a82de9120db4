"""How a command ends: exit code, line on stderr, JSON."""

import errno
import json
import os
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import (
    ConfigError,
    Location,
    ModuleError,
    SessionError,
    Terminated,
    UsageError,
)
from amplifier_app.base.outcome import OK, Ending, to_outcome
from amplifier_app.base.stdio import Output
from amplifier_app.commands.finish import Invocation, finish
from amplifier_app.render.result import RunReport
from amplifier_core import llm_errors
from amplifier_core._foreign import blame
from amplifier_modules.provider_mock.provider import MockProvider
from tests.support.schemas import RESULT


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("x"), 2),
        (ModuleError("x"), 3),
        (llm_errors.AuthenticationError("x"), 4),
        (llm_errors.AccessDeniedError("x"), 4),
        (llm_errors.InvalidRequestError("x"), 5),
        (llm_errors.ContentFilterError("x"), 5),
        (llm_errors.QuotaExceededError("x"), 5),
        (SessionError("x"), 6),
        (llm_errors.RateLimitError("x"), 75),
        (llm_errors.NetworkError("x"), 75),
        (llm_errors.StreamError("x", retryable=True), 75),
        (ConfigError("x"), 78),
        (llm_errors.ConfigurationError("x"), 78),
        (KeyboardInterrupt(), 130),
        (Terminated(), 143),
        (BrokenPipeError(), 141),
        (OSError(errno.ENOSPC, "No space left on device", "f"), 6),
        (OSError(errno.EROFS, "Read-only file system", "f"), 6),
        (PermissionError(errno.EACCES, "Permission denied", "f"), 78),
        (OSError(errno.EMFILE, "Too many open files"), 78),
        (ConnectionRefusedError(errno.ECONNREFUSED, "Connection refused"), 75),
        (KeyError("x"), 1),
    ],
)
def test_every_error_has_its_exit_code_and_a_result(error: BaseException, code: int) -> None:
    result, invocation = to_result(error)
    assert result["exit_code"] == code
    assert Ending(result["outcome"]).exit_code == code
    assert result["error"]["message"]
    assert invocation.stdout.failure is None


def to_result(error: Any) -> tuple[dict[str, Any], Invocation]:
    reading, writing = os.pipe()
    invocation = Invocation(output="json", stdout=Output(writing), report=RunReport())
    finish(invocation, error)
    os.close(writing)
    with open(reading, encoding="ascii") as pipe:
        result = json.loads(pipe.read())
    RESULT.validate(result)
    return result, invocation


def test_success_prints_nothing(capfd: pytest.CaptureFixture[str]) -> None:
    assert finish(Invocation(), OK) == 0
    assert capfd.readouterr() == ("", "")


def test_the_error_line_names_the_location_and_the_next_step(
    capfd: pytest.CaptureFixture[str],
) -> None:
    error = ConfigError("no such key", hint="did you mean 'tools'?", location=Location("p.yaml", 3))
    assert finish(Invocation(), error) == 78
    assert capfd.readouterr().err == ("amplifier: p.yaml:3: no such key\n  did you mean 'tools'?\n")


def test_the_message_is_taken_out_of_the_json_of_a_service() -> None:
    body = {"message": "Invalid schema", "type": "invalid_request_error"}
    for text in (json.dumps(body), json.dumps({"error": body})):
        error = llm_errors.InvalidRequestError(text, provider="openai")
        assert to_outcome(error).message == "openai: Invalid schema"
    for text in ("{not JSON", '{"code": 7}', '{"message": {}}'):
        assert to_outcome(llm_errors.InvalidRequestError(text)).message == text


def test_the_wait_requested_by_a_provider_is_reported(capfd: pytest.CaptureFixture[str]) -> None:
    error = llm_errors.RateLimitError("slow down", retry_after=7.5)
    assert finish(Invocation(), error) == 75
    assert "7.5 s" in capfd.readouterr().err
    assert to_result(error)[0]["error"]["retry_after_ms"] == 7500


def test_a_traceback_is_shown_only_with_verbose(capfd: pytest.CaptureFixture[str]) -> None:
    finish(Invocation(), KeyError("x"))
    brief = capfd.readouterr().err
    assert "Traceback" not in brief
    # A way that every command has.
    assert "AMPLIFIER_DEBUG=1" in brief
    finish(Invocation(verbose=True), _raised(KeyError("x")))
    assert "Traceback" in capfd.readouterr().err


def _raised(error: Exception) -> Exception:
    try:
        raise error
    except Exception as caught:
        return caught


def test_an_error_text_cannot_control_the_terminal(capfd: pytest.CaptureFixture[str]) -> None:
    finish(Invocation(), ModuleError("bad \x1b]0;title\x07\x1b[31mmodule\u202e [red]x[/red]"))
    assert capfd.readouterr().err == "amplifier: bad module [red]x[/red]\n"


def test_a_closed_pipe_is_silent_with_its_own_exit_code(capfd: pytest.CaptureFixture[str]) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    invocation = Invocation(stdout=Output(writing))
    assert not invocation.stdout.write("answer")
    os.close(writing)
    assert finish(invocation, OK) == 141
    assert capfd.readouterr().err == ""


def test_a_full_disk_is_not_a_success(capfd: pytest.CaptureFixture[str]) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full here")
    with full.open("wb", buffering=0) as file:
        invocation = Invocation(stdout=Output(file.fileno()))
        invocation.stdout.write("answer")
        assert finish(invocation, OK) == 6
    assert "no space left" in capfd.readouterr().err


def test_a_fault_of_a_bundled_module_is_to_be_reported() -> None:
    error = ValueError("no luck")
    blame(error, kind="provider", obj=MockProvider, name="mock", call="complete()")
    outcome = to_outcome(error)
    assert outcome.ending is Ending.PROVIDER
    assert (outcome.hint or "").splitlines() == [
        "This is a fault of the bundled provider. Report it with: amplifier report",
        "For the traceback, run again with -v.",
    ]
