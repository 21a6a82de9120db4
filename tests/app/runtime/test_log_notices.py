"""Log messages of modules become notices: held while modules mount, then shown once."""

import logging
import threading
from collections.abc import Iterator

import pytest

from amplifier_app.runtime.observers.notices import OWN_PACKAGES, LogNotices, show_logs
from amplifier_app.runtime.observers.observer import Level, Renderer


class Notices(Renderer):
    def __init__(self) -> None:
        super().__init__()
        self.shown: list[tuple[str, Level]] = []

    def notice(self, message: str, level: Level, source: str) -> None:
        self.shown.append((message, level))


@pytest.fixture(autouse=True)
def _root_as_before() -> Iterator[None]:
    root = logging.getLogger()
    ours = [logging.getLogger(name) for name in OWN_PACKAGES]
    before, levels = (root.handlers[:], root.level), [logger.level for logger in ours]
    yield
    root.handlers[:], root.level = before
    for logger, level in zip(ours, levels, strict=True):
        logger.setLevel(level)


@pytest.fixture
def notices() -> Notices:
    return Notices()


@pytest.fixture
def handler(notices: Notices) -> LogNotices:
    return show_logs(notices, verbose=False)


def test_messages_logged_while_modules_mount_are_held(
    notices: Notices, handler: LogNotices
) -> None:
    logging.getLogger("a.module").warning("no key")
    logging.getLogger("a.module").error("broken")
    assert notices.shown == []
    handler.show_held(reported=["provider-x: no key"])
    assert notices.shown == [("broken", "error")]
    logging.getLogger("a.module").warning("later")
    assert notices.shown[1:] == [("later", "warning")]


def test_other_threads_can_log_as_well(notices: Notices, handler: LogNotices) -> None:
    handler.show_held()
    logging.getLogger("a.module").warning("from here")
    other = threading.Thread(target=logging.getLogger("b").warning, args=("from there",))
    other.start()
    other.join(10)
    assert not other.is_alive()
    assert notices.shown == [("from here", "warning"), ("from there", "warning")]


def test_verbose_shows_messages_at_once_and_names_the_logger(notices: Notices) -> None:
    show_logs(notices, verbose=True)
    logging.getLogger("a.module").info("hello")
    assert notices.shown == [("a.module: hello", "info")]
