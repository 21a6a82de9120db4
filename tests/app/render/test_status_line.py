"""The status line, from wide to narrow."""

import os
from decimal import Decimal
from pathlib import Path

import pytest

from amplifier_app.base.paths import short_path
from amplifier_app.render.ansi import cells, plain
from amplifier_app.render.status_line import status_line
from amplifier_app.runtime.status import Status, git_branch

STATUS = Status(
    mode="ask",
    profile="default",
    provider="anthropic",
    model="claude-sonnet-5-5",
    context_used=76_000,
    context_limit=200_000,
    cost=Decimal("0.1234"),
    budget=None,
    branch="main",
    directory="~/proj",
)


@pytest.mark.parametrize(
    ("width", "expected"),
    [
        (80, " ask · claude-sonnet-5-5 · ▰▰▱▱▱ 38 % of 200k · $0.12 · main" + " " * 13 + "~/proj"),
        (60, " ask · claude-sonnet-5-5 · ▰▰▱▱▱ 38 % of 200k · $0.12 · main"),
        (58, " ask · claude-sonnet-5-5 · 38 % of 200k · $0.12 · main"),
        (50, " ask · claude-sonnet-5-5 · 38 % of 200k · $0.12"),
        (40, " ask · claude-sonnet-5-5 · 38 % of 200k"),
        (25, " ask · claude-sonnet-5-5"),
        (12, " ask"),
        (3, " a…"),
    ],
)
def test_fields_are_dropped_from_the_right(width: int, expected: str) -> None:
    assert plain(status_line(STATUS, width)) == expected


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["session", "model"], " a1b2c3 · claude-sonnet-5-5"),
        (["directory", "profile", "provider"], " default · anthropic" + " " * 33 + "~/proj"),
        (["mode", "tokens"], " ask · plan"),
        ([], ""),
    ],
)
def test_chosen_fields_are_shown_in_their_order(names: list[str], expected: str) -> None:
    status = STATUS._replace(session_id="20260131-120000-a1b2c3", module_mode="plan")
    assert plain(status_line(status, 60, names)) == expected


@pytest.mark.parametrize(
    ("used", "meter"), [(0, "▱▱▱▱▱"), (15_000, "▱▱▱▱▱"), (100_000, "▰▰▱▱▱"), (300_000, "▰▰▰▰▰")]
)
def test_the_meter_shows_how_full_the_context_is(used: int, meter: str) -> None:
    assert f" {meter} " in plain(status_line(STATUS._replace(context_used=used), 80))


@pytest.mark.parametrize("width", [40, 80, 120])
def test_the_line_fits(width: int) -> None:
    long = STATUS._replace(model="日本" * 60, branch="x" * 200, directory="/y" * 100)
    assert cells(status_line(long, width)) <= width


def test_the_answer_to_approval_requests_is_shown_next_to_a_mode_that_asks() -> None:
    line = status_line(STATUS._replace(policy="allow"), 80)
    assert plain(line).startswith(" ask → allow · claude-sonnet-5-5 ·")
    assert "\x1b[1;33mallow\x1b[0m" in line
    reading = STATUS._replace(mode="read-only", policy="allow")
    assert plain(status_line(reading, 80)).startswith(" read-only · ")
    assert plain(status_line(STATUS._replace(mode=None, policy="allow"), 80)).startswith(" claude")


def test_a_budget_is_shown_next_to_the_cost() -> None:
    line = plain(status_line(STATUS._replace(budget=Decimal(2)), 80))
    assert "$0.12 of $2.00" in line
    estimate = STATUS._replace(is_estimate=True)
    assert " ~$0.12 " in plain(status_line(estimate, 80))
    assert " ~$0.12 of $2.00 " in plain(status_line(estimate._replace(budget=Decimal(2)), 80))
    small = STATUS._replace(cost=Decimal("0.06"), budget=Decimal("0.045"))
    assert " $0.060 of $0.045 " in plain(status_line(small, 80))


def test_a_token_budget_is_shown_next_to_the_tokens() -> None:
    used = STATUS._replace(tokens=12_300, token_budget=50_000)
    assert " $0.12 · 12.3k of 50k tokens · main" in plain(status_line(used, 80))
    assert " ~12.3k of 50k tokens " in plain(status_line(used._replace(is_estimate=True), 80))
    assert "\x1b[2m12.3k of 50k tokens\x1b[0m" in status_line(used, 80)
    assert "\x1b[33m40k of 50k tokens\x1b[0m" in status_line(used._replace(tokens=40_000), 80)
    # Without a budget, or if a call did not report its tokens, there is nothing to compare.
    for other in (used._replace(tokens=None), used._replace(token_budget=None)):
        assert "tokens" not in status_line(other, 80)


def test_a_nearly_full_context_and_a_nearly_used_budget_are_highlighted() -> None:
    line = status_line(STATUS._replace(context_used=160_000, budget=Decimal("0.15")), 80)
    assert "\x1b[33m▱ 80 % of 200k\x1b[0m" in line
    assert "\x1b[33m$0.12 of $0.15\x1b[0m" in line


def test_the_demo_model_is_marked() -> None:
    assert "demo model" in status_line(STATUS._replace(provider="local"), 80)


def test_unknown_values_are_left_out() -> None:
    bare = Status(None, "p", "mine", None, None, None, None, None, None, "/x")
    assert plain(status_line(bare, 20)) == " mine            /x"


def test_the_branch_is_read_from_the_repository(tmp_path: Path) -> None:
    git = tmp_path / "repo" / ".git"
    git.mkdir(parents=True)
    (git / "HEAD").write_text("ref: refs/heads/feature/x\n")
    inner = tmp_path / "repo" / "src"
    inner.mkdir()
    assert git_branch(str(inner)) == "feature/x"
    (git / "HEAD").write_text("0123456789abcdef0123456789abcdef01234567\n")
    assert git_branch(str(inner)) == "0123456"


def test_a_pipe_instead_of_the_head_of_a_repository_does_not_block(tmp_path: Path) -> None:
    git = tmp_path / ".git"
    git.mkdir()
    os.mkfifo(git / "HEAD")
    assert git_branch(str(tmp_path)) is None


def test_the_branch_of_a_work_tree(tmp_path: Path) -> None:
    own = tmp_path / "main" / ".git" / "worktrees" / "w"
    own.mkdir(parents=True)
    (own / "HEAD").write_text("ref: refs/heads/side\n")
    tree = tmp_path / "w"
    tree.mkdir()
    (tree / ".git").write_text(f"gitdir: {own}\n")
    assert git_branch(str(tree)) == "side"


def test_the_home_directory_is_abbreviated(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/home/me")
    assert [short_path(path) for path in ("/home/me", "/home/me/p", "/home/men")] == [
        "~", "~/p", "/home/men",
    ]  # fmt: skip
