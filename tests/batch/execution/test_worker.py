"""What a row would have written to stderr is in its results."""

from amplifier_batch.execution.worker import Notices


def test_messages_beyond_the_limit_are_counted() -> None:
    notices = Notices()
    for number in range(103):
        notices.notice(f"message {number}", "info", "provider")
    notices.notice("failed", "warning", "check")
    assert len(notices.messages) == 101
    assert notices.messages[-2:] == ["message 99", "3 more messages"]


def test_warnings_have_a_prefix() -> None:
    notices = Notices()
    notices.notice("busy", "warning", "provider")
    assert notices.messages == ["warning: busy"]
