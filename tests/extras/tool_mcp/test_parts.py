"""Names of tools, and answers that servers seldom give."""

import base64
import re
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from amplifier_extras.tool_mcp.hub import Results, tool_name
from amplifier_extras.tool_mcp.transports import ErrorLog
from amplifier_support.redaction import Redactor
from tests.support.results import read_text, to_exception


@pytest.mark.parametrize(
    "tool", ["read", "read.file", "a/b", "ünï", "x" * 100, "", "with space", "😀", "-", "__"]
)
def test_names_are_valid_for_every_service(tool: str) -> None:
    assert re.fullmatch(r"[A-Za-z_][A-Za-z0-9_-]{0,63}", tool_name("server", tool, ()))


def test_colliding_names_are_made_unique() -> None:
    taken: list[str] = []
    for server, tool in [
        ("a", "b.c"),
        ("a", "b_c"),
        ("a_b", "c"),
        ("a", "x" * 99),
        ("a", "x" * 98),
    ]:
        taken.append(tool_name(server, tool, taken))
    assert len(set(taken)) == len(taken)
    assert taken[0] == "mcp_a_b_c"
    again = tool_name("a", "b_c", ["mcp_a_b_c"])
    assert again == taken[1], "a name is the same in every session"


def test_a_server_cannot_take_the_name_of_a_tool_of_another() -> None:
    servers = ["git", "git_hub"]
    for taken in ((), ("mcp_git_hub_push",)):
        name = tool_name("git", "hub_push", taken, servers)
        assert re.fullmatch("mcp_git_hub_push_[0-9a-f]{8}", name)
    assert tool_name("git_hub", "push", (), servers) == "mcp_git_hub_push"
    assert tool_name("git", "push", (), servers) == "mcp_git_push"


def answer(*content: Any, structured: Any = None, is_error: bool = False) -> SimpleNamespace:
    return SimpleNamespace(content=content, structured_content=structured, is_error=is_error)


def content(kind: str, **fields: Any) -> SimpleNamespace:
    return SimpleNamespace(type=kind, **fields)


@pytest.fixture
def results(tmp_path: Path) -> Results:
    return Results(5000, lambda: tmp_path)


def test_unknown_content_is_named(results: Results) -> None:
    text = read_text(results.of_call(answer(content("hologram"), content("text", text="x"))))
    assert text == "[content of the unknown type 'hologram']\nx"


def test_an_unsupported_image_type_is_saved(results: Results, tmp_path: Path) -> None:
    data = base64.b64encode(b"<svg/>").decode()
    result = results.of_call(answer(content("image", data=data, mime_type="image/svg+xml")))
    assert result.content is None
    [path] = re.findall(r"saved as (.*)\]", read_text(result))
    assert Path(path).read_bytes() == b"<svg/>"
    assert Path(path).parent == tmp_path


@pytest.mark.parametrize("data", [b"no image", b"\x89PNG\r\n\x1a\n" + bytes(6_000_000)])
def test_what_a_service_would_refuse_as_an_image_is_saved(results: Results, data: bytes) -> None:
    image = content("image", data=base64.b64encode(data).decode(), mime_type="image/png")
    result = results.of_call(answer(image))
    assert result.content is None
    [path] = re.findall(r"saved as (.*)\]", read_text(result))
    assert Path(path).read_bytes() == data


def test_more_images_than_a_request_may_have_are_left_out(results: Results) -> None:
    data = base64.b64encode(b"\xff\xd8\xff" + bytes(20)).decode()
    images = [content("image", data=data, mime_type="image/jpeg") for _ in range(23)]
    result = results.of_call(answer(*images))
    assert read_text(result) == "[3 more images left out]"
    assert len(result.content or []) == 21


@pytest.mark.parametrize("data", ["?", "abc", "aGk=\n"])
def test_invalid_base64_is_reported(results: Results, data: str) -> None:
    image = content("image", data=data, mime_type="image/png")
    assert "not valid base64" in read_text(results.of_call(answer(image)))


def test_data_that_cannot_be_saved_is_reported(tmp_path: Path) -> None:
    results = Results(5000, lambda: tmp_path / "gone")
    audio = content("audio", data="aGk=", mime_type="audio/mpeg")
    assert "could not be saved" in read_text(results.of_call(answer(audio)))


def test_structured_content_alone_is_returned_as_json(results: Results) -> None:
    assert read_text(results.of_call(answer(structured={"ä": [1]}))) == '{\n "ä": [\n  1\n ]\n}'


def test_an_empty_response_is_a_result(results: Results) -> None:
    assert read_text(results.of_call(answer())) == "(no output)"
    assert to_exception(results.of_call(answer(is_error=True)))["message"] == "the tool failed"


def test_an_unwritable_log_is_reported_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = ErrorLog(lambda: tmp_path / "gone", "x.log", Redactor(["known-secret"]))
    log.feed(b"one\nknown-")
    log.feed(b"secret\ntwo\n")
    log.close()
    assert log.last_words() == "one | [REDACTED:secret] | two"
    assert caplog.text.count("cannot write the log") == 1


def test_a_log_does_not_grow_without_end(tmp_path: Path) -> None:
    log = ErrorLog(lambda: tmp_path, "x.log", Redactor())
    for _ in range(70):
        log.feed(b"x" * 100_000)
    log.close()
    assert (tmp_path / "x.log").stat().st_size == 5_000_000


def test_a_link_in_place_of_the_log_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("kept")
    (tmp_path / "x.log").symlink_to(tmp_path / "other")
    log = ErrorLog(lambda: tmp_path, "x.log", Redactor())
    log.feed(b"one\n")
    log.close()
    assert (tmp_path / "other").read_text() == "kept"
