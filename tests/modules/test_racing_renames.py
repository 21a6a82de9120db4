"""No tool reads or changes anything outside while another process exchanges folders and links."""

import os
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.chat.project_files import with_files
from amplifier_core.testing import MockCoordinator
from amplifier_modules import hooks_backup, tool_filesystem, tool_search
from amplifier_modules._shared.output import OutputCapture
from amplifier_modules.hooks_context_files.hook import ContextFilesConfig, Reader
from amplifier_support.files import folder_at, open_inside
from tests.support.renames import INSIDE, OUTSIDE, assert_untouched, racing_renames
from tests.support.thorough import Scale

OUTCOMES = ("spilled", "not spilled", "read", "refused")
SPOTS = ("spot/a.txt", "spot/deep/a.txt", "leaf")
READS: dict[str, list[dict[str, Any]]] = {
    "read_file": [{"file_path": path} for path in SPOTS],
    "list_directory": [{"path": "spot"}, {"path": "spot/deep"}],
    "grep": [
        {"pattern": "the workspace"},
        {"pattern": "the workspace", "path": "spot"},
        {"pattern": "the workspace", "path": "leaf"},
        {"pattern": "outside of", "output_mode": "count"},
        {"pattern": "outside of", "output_mode": "files"},
    ],
    "glob": [{"pattern": "only-*"}, {"pattern": "*.txt", "path": "spot"}],
}
WRITES: dict[str, list[dict[str, Any]]] = {
    "write_file": [
        {"file_path": path, "content": f"{INSIDE}\n"} for path in (*SPOTS, "spot/new/x.txt")
    ],
    "edit_file": [
        {"file_path": path, "old_string": "inside", "new_string": "inside"} for path in SPOTS
    ],
}


class Session:
    """The tools over one folder, every call with the backup hook around it."""

    def __init__(self, folder: Path, session: Path) -> None:
        self.coordinator = MockCoordinator()
        self.coordinator.register_capability("session.working_dir", str(folder))
        self.coordinator.register_capability("session.dir", str(session))
        self.outcomes: Counter[str] = Counter()

    async def call(self, name: str, values: dict[str, Any]) -> None:
        hooks = self.coordinator.hooks
        number = str(self.outcomes.total())
        data = {"tool_name": name, "tool_call_id": number, "tool_input": values, "input": values}
        await hooks.emit("tool:pre", data)
        result = await self.coordinator.get("tools", name).execute(values)
        await hooks.emit("tool:post", {**data, "result": result})
        text = str(result.output if result.success else result.error)
        assert OUTSIDE not in text, (name, values, text)
        assert "only-outside.txt" not in text, (name, values, text)
        self.outcomes[f"{name} {'done' if result.success else 'refused'}"] += 1


@pytest.fixture(params=["ripgrep", "python"])
async def session(
    request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[Session]:
    # The ripgrep of the development tools, if the machine has no other.
    monkeypatch.setenv("PATH", f"{os.environ['PATH']}{os.pathsep}{Path(sys.executable).parent}")
    for name in ("ws", "outside", "session"):
        (tmp_path / name).mkdir()
    made = Session(tmp_path / "ws", tmp_path / "session")
    closing = [
        await hooks_backup.mount(made.coordinator, {}),
        await tool_filesystem.mount(made.coordinator, {}),
        await tool_search.mount(made.coordinator, {"engine": request.param}),
    ]
    yield made
    for close in closing:
        if close is not None:
            pending = close()
            if pending is not None:
                await pending


@pytest.fixture
def until(scale: Scale) -> Callable[[], bool]:
    """Return True while there is time left: 0.2 s by default, 20 s for each of three tests in a thorough run."""
    end = time.monotonic() + scale(0.2, 20)
    return lambda: time.monotonic() < end


async def test_no_tool_leads_out(
    session: Session, tmp_path: Path, until: Callable[[], bool]
) -> None:
    with racing_renames(tmp_path / "ws", tmp_path / "outside"):
        while until() or not session.outcomes:
            for tools in (READS, WRITES):
                for name, calls in tools.items():
                    for values in calls:
                        await session.call(name, values)
    assert_untouched(tmp_path / "outside")
    kept = [p for p in (tmp_path / "session").rglob("*") if p.is_file()]
    assert not any(OUTSIDE in path.read_text() for path in kept)
    assert {name.split()[0] for name in session.outcomes} == READS.keys() | WRITES.keys()


def test_no_file_for_a_prompt_or_its_context_leads_out(
    tmp_path: Path, until: Callable[[], bool]
) -> None:
    workspace, outside = tmp_path / "ws", tmp_path / "outside"
    workspace.mkdir()
    (workspace / "AGENTS.md").write_text("@spot/a.txt\n@leaf\n@spot/deep/a.txt\n")
    settings = ContextFilesConfig(includes=["*"])
    seen: Counter[bool] = Counter()
    with racing_renames(workspace, outside):
        while until() or not seen[True]:
            included = with_files("@spot/a.txt @leaf @spot/deep/a.txt:1", str(workspace))
            read = Reader(settings, settings.max_bytes).folder(
                str(workspace), str(workspace), "project"
            )
            for text in (included.text, read.text if read is not None else ""):
                assert OUTSIDE not in text
                seen[INSIDE in text] += 1
    assert seen[True]
    assert_untouched(outside)


def test_long_output_and_files_below_a_folder_stay_inside(tmp_path: Path, scale: Scale) -> None:
    work, outside = tmp_path / "work", tmp_path / "outside"
    seen: Counter[str] = Counter()

    def spill(number: int) -> None:
        file = work / "spot" / f"output-{number}"
        capture = OutputCapture(limit=10, spill_limit=1000, new_file=lambda: file)
        capture.feed(b"x" * 100)
        capture.close()
        seen["spilled" if capture.captured().file else "not spilled"] += 1

    def read(path: str) -> None:
        try:
            with open(open_inside(str(work), path), encoding="utf-8") as file:
                assert OUTSIDE not in file.read()
                seen["read"] += 1
        except (OSError, ValueError):
            seen["refused"] += 1

    def create() -> None:
        try:
            with folder_at(str(work / "spot" / "new"), create=True) as folder:
                os.close(os.open("file", os.O_CREAT | os.O_WRONLY, dir_fd=folder))
        except OSError:
            seen["not created"] += 1

    work.mkdir()
    with racing_renames(work, outside):
        until = time.monotonic() + scale(0.2, 20)
        while time.monotonic() < until or not all(seen[what] for what in OUTCOMES):
            spill(seen.total())
            create()
            for path in SPOTS:
                read(path)
    assert_untouched(outside)
