"""The files that `@NAME:path` refers to, as published tools and hooks look them up."""

from pathlib import Path

import pytest

from amplifier_app.runtime.capabilities import Mentions, Namespace, register_mentions
from amplifier_core.testing import TestCoordinator
from amplifier_support.session_capabilities import MENTIONS


@pytest.fixture
def mentions(tmp_path: Path) -> Mentions:
    for file in ("kit/behaviors/x.md", "kit/modes/plan.md", "kit/base.md", "work/a.md", "secret"):
        path = tmp_path / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(file)
    (tmp_path / "kit" / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "kit" / "alias").symlink_to("base.md")
    folders = (tmp_path / "kit" / "behaviors", tmp_path / "kit")
    return Mentions({"kit": Namespace("kit", folders[0], folders)}, str(tmp_path / "work"))


@pytest.mark.parametrize(
    ("mention", "file"),
    [
        ("@kit:x.md", "kit/behaviors/x.md"),
        ("@kit:base.md", "kit/base.md"),
        ("@kit:modes", "kit/modes"),
        ("@kit:behaviors/../base.md", "kit/base.md"),
        ("@kit:alias", "kit/alias"),
        ("@a.md", "work/a.md"),
        ("a.md", "work/a.md"),
    ],
)
def test_a_mention_is_a_file_or_folder_of_the_namespace(
    mentions: Mentions, tmp_path: Path, mention: str, file: str
) -> None:
    assert mentions.resolve(mention) == tmp_path / file


@pytest.mark.parametrize(
    "mention",
    [
        "@kit:none.md",
        "@kit:../../secret",
        "@kit:link",
        "@other:base.md",
        "@../secret",
        "@kit:/etc",
        "@kit:\0",
        "@" + "n" * 9999,
    ],
)
def test_what_is_missing_or_outside_is_not_found(mentions: Mentions, mention: str) -> None:
    assert mentions.resolve(mention) is None


async def test_each_folder_that_is_not_available_is_named(tmp_path: Path) -> None:
    coordinator = TestCoordinator()
    gone = f"git+file://{tmp_path}/gone@{'0' * 40}"
    file = tmp_path / "file"
    file.touch()
    long = f"/{'n' * 300}"
    sources = {"kit": [gone, str(tmp_path), str(file)], "long": [long], "gone": [gone], "empty": []}
    failures = await register_mentions(coordinator, sources, offline=True)
    assert [failure.partition(" cannot be read: ")[0] for failure in failures] == [
        "files of @kit",
        "files of @kit",
        "files of @long",
        "files of @gone",
    ]
    assert failures[1].endswith(f"{file} is not a folder")
    found = MENTIONS.of(coordinator)
    assert found is not None
    assert list(found.bundles) == ["kit", "long"]
    assert found.bundles["kit"].base_path == tmp_path
