"""The sessions of this machine in a browser."""

import contextlib
import signal
import socket
import struct
import subprocess
from collections.abc import Generator
from pathlib import Path
from typing import Any
from zipfile import ZipFile

import httpx2
import pytest

from tests.support.cli import run_amplifier, start_amplifier, succeed
from tests.support.packages import wheel
from tests.support.plans import held_plan, let_go, mock_plan
from tests.support.waiting import wait_until

SECRET = "sk-ant-api03-" + "Ab3dEf6hIj9l" * 8


@contextlib.contextmanager
def viewing(*arguments: str, warning: str = "", **options: Any) -> Generator[str]:
    """The address that `amplifier view` prints; Ctrl-C ends it quietly."""
    process = start_amplifier("view", "--no-open", *arguments, stderr=subprocess.PIPE, **options)
    try:
        assert process.stdout is not None
        yield process.stdout.readline().decode().strip()
    finally:
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=60)
        assert (output, errors.decode().strip()) == (b"", warning)
        assert process.returncode == 130


@contextlib.contextmanager
def browser(address: str) -> Generator[httpx2.Client]:
    """A browser that has opened the address."""
    base = address.partition("?")[0].rpartition("/")[0]
    base = base[: base.index("/", 8)] if "/" in base[8:] else base
    with httpx2.Client(base_url=base, follow_redirects=True, timeout=60) as client:
        assert client.get(address).status_code == 200
        yield client


def test_sessions_are_listed_and_shown_without_secrets(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"})
    prompt = f"<script>alert(1)</script> {SECRET}"
    succeed("run", "-f", plan, "--session", "one", prompt, cwd=tmp_path)
    with viewing() as address, browser(address) as client:
        pages = [client.get(path).text for path in ("/", "/session/one", "/session/one/page")]
        assert '<a href="/session/one">' in pages[0]
        assert str(tmp_path) in pages[0]
        assert 'src="/session/one/page"' in pages[1]
        assert "You said: " in pages[2]
        for page in pages:
            assert SECRET not in page
            assert "<script>alert" not in page
            assert "Content-Security-Policy" in page
        assert client.get("/session/two").status_code == 404
        assert client.get("/session/..%2F..").status_code == 404
        assert client.get("/elsewhere").status_code == 404


def test_a_page_changes_with_its_session(tmp_path: Path) -> None:
    plan = held_plan(tmp_path, ["the answer"])
    running = start_amplifier("run", "-f", plan, "--session", "live", "the question", cwd=tmp_path)
    with viewing() as address, browser(address) as client:
        wait_until(lambda: "the question" in client.get("/session/live/page").text)
        before = client.get("/session/live/version").text, client.get("/version").text
        let_go(tmp_path)
        running.communicate(timeout=60)
        assert "the answer" in client.get("/session/live/page").text
        assert client.get("/session/live/version").text != before[0]
        assert client.get("/version").text != before[1]


def test_a_batch_has_a_page_that_changes_with_it(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text(f"one {SECRET}\ntwo\n")
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"})
    succeed("batch", "run", plan, "rows.txt", "-o", "out", cwd=tmp_path)
    with viewing("out", cwd=tmp_path) as address, browser(address) as client:
        assert "/folder?token=" in address
        assert 'src="/folder/page"' in client.get("/folder").text
        page, version = client.get("/folder/page").text, client.get("/folder/version").text
        assert "You said: two" in page
        assert SECRET not in page
        assert "Scores" not in page
        score = ("batch", "score", "out", "--score", "size=echo 3")
        succeed(*score, cwd=tmp_path)
        assert client.get("/folder/version").text != version
        assert "Scores" in client.get("/folder/page").text
        assert client.get("/folder/other").status_code == 404
        assert client.get("/").status_code == 200
    with viewing() as address, browser(address) as client:
        assert client.get("/folder").status_code == 404


def test_the_rows_of_a_batch_that_run_are_shown(tmp_path: Path) -> None:
    (tmp_path / "rows.txt").write_text("one\n<b>two\n")
    # The first ends at once, the second waits.
    command = "test -e begun && while [ ! -e go ]; do sleep 0.05; done; touch begun"
    call = {"name": "bash", "input": {"command": command}}
    plan = mock_plan(tmp_path, [{"tool_calls": [call]}, "done"], tools=["tool-bash"])
    words = ("batch", "run", plan, "rows.txt", "-o", "out", "--workers", "1", "--repeat", "2")
    batch = start_amplifier(*words, cwd=tmp_path, stderr=subprocess.PIPE)
    wait_until((tmp_path / "out" / "batch.json").exists)
    with viewing("out", cwd=tmp_path) as address, browser(address) as client:
        wait_until(lambda: " per minute" in client.get("/folder/page").text)
        page, version = client.get("/folder/page").text, client.get("/folder/version").text
        assert "1 run · " in page
        assert "<ul class=running><li>" in page.replace("\n", "")
        (tmp_path / "go").touch()
        batch.communicate(timeout=60)
        assert client.get("/folder/version").text != version
        assert "class=running" not in client.get("/folder/page").text


def test_a_folder_without_a_page_is_an_error(tmp_path: Path) -> None:
    done = run_amplifier("view", "--no-open", ".", cwd=tmp_path)
    assert done.code == 6
    assert "there is no page about the folder '.'" in done.stderr


def test_a_broken_page_of_a_package_is_named_and_harms_no_other(tmp_path: Path) -> None:
    code = "def fail(folder):\n    raise ValueError('no licence')"
    file = wheel(tmp_path, "broken", "1.0", files={"broken.py": code}, pages={"x": "broken:fail"})
    with ZipFile(file) as archive:
        archive.extractall(tmp_path / "site")
    (tmp_path / "rows.txt").write_text("one")
    plan = mock_plan(tmp_path, ["x"])
    succeed("batch", "run", plan, "rows.txt", "-o", "out", cwd=tmp_path)
    options: dict[str, Any] = {"cwd": tmp_path, "env": {"PYTHONPATH": str(tmp_path / "site")}}
    warning = "cannot load the page broken:fail: ValueError: no licence"
    with viewing("out", warning=warning, **options) as address, browser(address) as client:
        assert client.get("/folder/page").status_code == 200


def test_one_browser_is_let_in(tmp_path: Path) -> None:
    run_amplifier("run", "-f", mock_plan(tmp_path, ["x"]), "--session", "one", "x", cwd=tmp_path)
    with viewing("one") as address, browser(address) as client:
        assert "/session/one?token=" in address
        base = str(client.base_url)
        assert httpx2.get(base).status_code == 401
        assert httpx2.get(address).status_code == 401  # the token was used
        [(name, value)] = client.cookies.items()
        for cookie in (f"{name}=x", name, "=", ";;=;", f"other={value}", f"{name}=é"):
            headers = [(b"Cookie", cookie.encode())]
            assert httpx2.get(base, headers=headers).status_code == 401
        # A browser sends the cookies of both ports to each.
        with viewing("one") as second:
            assert client.get(second).status_code == 200
            assert [client.get(url).status_code for url in (base, second.partition("?")[0])] == [
                200
            ] * 2
        assert client.get("/", headers={"Host": "example.com"}).status_code == 403
        assert client.get("/", headers={"Origin": "https://example.com"}).status_code == 403
        assert client.post("/").status_code == 501
        cookie = next(iter(client.cookies.jar))
        assert cookie.has_nonstandard_attr("HttpOnly")
        assert cookie.get_nonstandard_attr("SameSite") == "Strict"


def test_odd_requests_and_clients_that_go_away_are_not_reported(tmp_path: Path) -> None:
    process = start_amplifier("view", "--no-open", stderr=subprocess.PIPE)
    assert process.stdout is not None
    address = process.stdout.readline().decode().strip()
    host = address.removeprefix("http://").partition("/")[0]
    for target in ("//[", "http://[::1", "*", "/?token=%FF"):
        with socket.create_connection(("127.0.0.1", int(host.rpartition(":")[2]))) as client:
            client.sendall(f"GET {target} HTTP/1.1\r\nHost: {host}\r\n\r\n".encode())
            assert client.recv(12) == b"HTTP/1.1 401"
            # Closed with a reset, because the rest of the answer is not read.
            client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    process.terminate()
    _, errors = process.communicate(timeout=60)
    assert errors == b"amplifier: terminated\n"


@pytest.mark.parametrize("session", ["nothing", "../x"])
def test_an_unknown_session_is_an_error(session: str) -> None:
    done = run_amplifier("view", "--no-open", session)
    assert done.code == 6
    assert "session" in done.stderr
