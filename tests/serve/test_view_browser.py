"""The pages of `amplifier view` in a real browser."""

import contextlib
import itertools
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from tests.serve.test_view import viewing
from tests.support.cli import start_amplifier, succeed
from tests.support.plans import held_plan, let_go, mock_plan
from tests.support.waiting import wait_until

PROGRAMS = ("chromium-headless-shell", "chromium", "google-chrome")
PROGRAM = next(filter(None, map(shutil.which, PROGRAMS)), "")

pytestmark = [
    pytest.mark.thorough,
    pytest.mark.skipif(not PROGRAM, reason="chromium is not installed"),
]

_WITH_PIPES = (
    "import os, sys; commands, events, *program = sys.argv[1:]; os.dup2(int(commands), 3); "
    "os.dup2(int(events), 4); os.execv(program[0], program)"
)
HOSTILE = (
    "<script>parent.document.title = document.title = 'run'</script>"
    "<img src=x onerror=\"document.title='run'\"></pre></details></main>"
    "<iframe srcdoc=\"<script>top.document.title='run'</script>\"></iframe>"
    "<style>body{display:none}</style><base href='https://example.com/'>"
)


class Browser:
    """Chromium, controlled through its pipes; see https://chromedevtools.github.io/devtools-protocol/."""

    def __init__(self, folder: Path) -> None:
        commands, self._commands = os.pipe()
        self._events, events = os.pipe()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-c", _WITH_PIPES, str(commands), str(events), PROGRAM),
                *("--headless", "--no-sandbox", "--disable-gpu"),
                *("--remote-debugging-pipe", f"--user-data-dir={folder}", "about:blank"),
            ],
            pass_fds=(commands, events),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        os.close(commands)
        os.close(events)
        self._numbers = itertools.count(1)
        self._rest = b""
        self._session = ""

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self._numbers)
        message: dict[str, Any] = {"id": number, "method": method, "params": params}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._commands, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._read()
            if answer.get("id") == number:
                assert "error" not in answer, answer
                return answer["result"]

    def _read(self) -> dict[str, Any]:
        while b"\0" not in self._rest:
            part = os.read(self._events, 1 << 16)
            assert part, "the browser has ended"
            self._rest += part
        line, _, self._rest = self._rest.partition(b"\0")
        return json.loads(line)

    def open(self, address: str) -> None:
        target = self.call("Target.createTarget", url=address)["targetId"]
        attached = self.call("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]

    def value(self, script: str) -> Any:
        result = self.call("Runtime.evaluate", expression=script, returnByValue=True)["result"]
        return result.get("value")

    def wait_for(self, script: str) -> None:
        wait_until(lambda: self.value(script), about=lambda: self.value("document.body.innerHTML"))


@contextlib.contextmanager
def browsing(folder: Path, address: str) -> Generator[Browser]:
    browser = Browser(folder / "profile")
    try:
        browser.open(address)
        yield browser
    finally:
        browser.process.kill()
        browser.process.wait()


FRAME = "document.querySelector('iframe').contentDocument"


def test_a_session_is_shown_as_it_goes_on(tmp_path: Path) -> None:
    plan = held_plan(tmp_path, ["the answer"])
    running = start_amplifier("run", "-f", plan, "--session", "live", "the question", cwd=tmp_path)
    with viewing() as address, browsing(tmp_path, address) as browser:
        browser.wait_for("document.querySelector('a[href=\"/session/live\"]') !== null")
        browser.call("Page.navigate", url=address.partition("?")[0] + "session/live")
        browser.wait_for(f"{FRAME}?.body?.innerText.includes('the question')")
        assert not browser.value(f"{FRAME}.body.innerText.includes('the answer')")
        let_go(tmp_path)
        running.communicate(timeout=60)
        browser.wait_for(f"{FRAME}?.body?.innerText.includes('the answer')")


def test_nothing_of_a_session_runs_or_changes_the_page(tmp_path: Path) -> None:
    (tmp_path / "bad.html").write_bytes(HOSTILE.encode() + b"\x1b[2J\xff\xfe" + b"x" * 300_000)
    call = {"name": "bash", "input": {"command": f"cat bad.html; : {HOSTILE!r}"}}
    replies = [{"text": HOSTILE, "tool_calls": [call]}, HOSTILE]
    plan = mock_plan(tmp_path, replies, tools=["tool-bash"])
    succeed("run", "-f", plan, "--session", "bad", HOSTILE, cwd=tmp_path)
    with viewing("bad") as address, browsing(tmp_path, address) as browser:
        browser.wait_for(f"{FRAME}?.body?.innerText.includes('onerror')")
        browser.wait_for("known !== undefined")
        for document in ("document", FRAME):
            assert browser.value(f"{document}.title") != "run"
            assert browser.value(f"getComputedStyle({document}.body).display") != "none"
            assert browser.value(f"{document}.querySelectorAll('img, base').length") == 0
        assert browser.value(f"{FRAME}.querySelectorAll('script, iframe').length") == 0
        assert browser.value("document.querySelectorAll('iframe').length") == 1
        # The cookie is out of reach of scripts, and no request leaves this machine.
        assert browser.value("document.cookie") == ""
        hosts = "performance.getEntries().map(e => e.name).filter(n => n.startsWith('http'))"
        assert all("127.0.0.1" in name for name in browser.value(hosts))
