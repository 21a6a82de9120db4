"""Output of a run whose stdout is a pipe or a file."""

import pytest

from amplifier_app.render import text
from amplifier_app.render.text import StderrNotices


@pytest.mark.parametrize("is_terminal", [True, False])
def test_notices_wait_for_the_question_on_the_terminal(
    is_terminal: bool, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(text, "stderr_is_tty", lambda: is_terminal)
    notices = StderrNotices(quiet=False)
    with notices.paused():
        notices.notice("meanwhile", "info", "x")
        assert ("meanwhile" in capfd.readouterr().err) is not is_terminal
    assert ("meanwhile" in capfd.readouterr().err) is is_terminal
