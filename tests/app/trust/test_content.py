"""What trust in a project covers, and which changes its hash detects."""

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.trust import content as content_module
from amplifier_app.trust import examine
from amplifier_app.trust.review import changes, listing
from tests.support.module_repositories import write_files

FILES = {
    ".amplifier/settings.yaml": "profile: mine\n",
    ".amplifier/profiles/mine.yaml": "extends: default\n",
    ".amplifier/modules/tool-x/tool_x.py": "async def mount(c, config): ...\n",
    ".amplifier/notes.txt": "nothing\n",
}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    return write_files(tmp_path / "project", FILES)


def look(project: Path) -> content_module.Content:
    return examine(project / ".amplifier")


def names(project: Path) -> list[str]:
    return list(look(project).entries)


def append(project: Path, name: str) -> None:
    with (project / name).open("a") as file:
        file.write("#")


def executable(project: Path) -> None:
    (project / ".amplifier/notes.txt").chmod(0o755)


def rename(project: Path) -> None:
    (project / ".amplifier/notes.txt").rename(project / ".amplifier/notes.md")


def add_empty(project: Path) -> None:
    (project / ".amplifier/modules/tool-x/sitecustomize.py").touch()


def swap(project: Path) -> None:
    one, other = project / ".amplifier/notes.txt", project / ".amplifier/settings.yaml"
    texts = one.read_text(), other.read_text()
    one.write_text(texts[1])
    other.write_text(texts[0])


def to_link(project: Path) -> None:
    file = project / ".amplifier/notes.txt"
    file.unlink()
    file.symlink_to("settings.yaml")


CHANGES: list[Callable[[Path], None]] = [
    *(lambda project, name=name: append(project, name) for name in FILES),
    executable,
    rename,
    add_empty,
    swap,
    to_link,
    lambda project: (project / ".amplifier/notes.txt").unlink(),
    lambda project: (project / ".amplifier/notes.txt").write_bytes(b""),
]


@pytest.mark.parametrize("change", CHANGES)
def test_every_change_changes_the_hash(project: Path, change: Callable[[Path], None]) -> None:
    before = look(project).hash
    assert look(project).hash == before
    change(project)
    assert look(project).hash != before


def test_excluded_files_do_not_change_the_hash(project: Path) -> None:
    before = look(project).hash
    (project / "README.md").write_text("not selected by anything")
    (project / ".amplifier/notes.txt").touch()
    module = project / ".amplifier/modules/tool-x"
    for name in (".git/config", ".venv/bin/x", "node_modules/x.js", "__pycache__/x.pyc"):
        write_files(module, {name: "changes all the time"})
    assert look(project).hash == before


def test_a_copy_elsewhere_has_the_same_hash(project: Path, tmp_path: Path) -> None:
    assert look(write_files(tmp_path / "clone", FILES)).hash == look(project).hash


def test_names_and_content_are_kept_apart(tmp_path: Path) -> None:
    one = write_files(tmp_path / "one", {".amplifier/a": "b", ".amplifier/c": ""})
    other = write_files(tmp_path / "other", {".amplifier/ab": "", ".amplifier/c": ""})
    assert look(one).hash != look(other).hash


# -- what is selected outside -------------------------------------------------------------


def test_selections_of_documents_are_covered_transitively(project: Path) -> None:
    write_files(
        project,
        {
            ".amplifier/settings.yaml": "sources: {tool-a: ../tools/a, 'tool-b': ../tools/b.py}\n",
            ".amplifier/profiles/mine.yaml": "extends: ../../plans/base.yaml\n",
            "plans/base.yaml": (
                "extends: ./../more.yml\nsession: {orchestrator_source: ../loop}\n"
                "orchestrator: {module: x, source: ../other}\n"
            ),
            "more.yml": "tools: [{module: tool-c, source: ./tools/c}]\n",
            "tools/a/deep/a.py": "",
            "tools/b.py": "",
            "tools/c/c.py": "",
            "tools/d.py": "",
            "loop/l.py": "",
            "other/o.py": "",
        },
    )
    outside = {
        *("plans/base.yaml", "more.yml", "tools/a/deep/a.py", "tools/b.py", "tools/c/c.py"),
        *("loop/l.py", "other/o.py"),
    }
    assert set(names(project)) == {*FILES, *outside}
    for name in outside:
        before = look(project).hash
        append(project, name)
        assert look(project).hash != before, name
    found = look(project)
    assert found.covers(project / "tools/a/deep")
    assert not found.covers(project / "tools")
    assert not found.covers(project / "tools/d.py")
    assert not found.covers(project / "tools/a/../d.py")
    assert not found.covers(project / "tools/ab")


def test_archives_are_covered(project: Path) -> None:
    text = "sources: {a: '../a.whl', b: '../b.zip#subdirectory=x', c: 'https://host/c.whl'}\n"
    write_files(project, {".amplifier/settings.yaml": text, "a.whl": "1", "b.zip": "2"})
    assert {"a.whl", "b.zip"} <= set(names(project))


def test_sources_in_agents_and_from_variables_are_covered(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_files(
        project,
        {
            ".amplifier/settings.yaml": (
                "agents: [{name: a, tools: [{module: tool-a, source: '${WHERE:-../one}'}]}]\n"
            ),
            "one/1.py": "",
            "two/2.py": "",
        },
    )
    assert "one/1.py" in names(project)
    one = look(project).hash
    monkeypatch.setenv("WHERE", "../two")
    assert "two/2.py" in names(project)
    assert "one/1.py" not in names(project)
    assert look(project).hash != one


def test_files_outside_the_project_have_absolute_names(project: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "elsewhere", {"x.py": "1"})
    write_files(project, {".amplifier/settings.yaml": f"sources: {{t: {tmp_path}/elsewhere}}\n"})
    assert f"{tmp_path}/elsewhere/x.py" in names(project)


def test_files_and_agents_that_documents_include_are_covered(
    project: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("AMPLIFIER_HOME", str(tmp_path / "home"))
    agent = "---\nname: {0}\ntools: [{{module: t, source: ../../{0}}}]\n---\n@../../{0}.txt\n"
    write_files(
        project,
        {
            ".amplifier/settings.yaml": "instruction: |\n  @../one.md\nagents: [ours, theirs]\n",
            ".amplifier/agents/ours.md": agent.format("ours"),
            # Not searched, as this is not a project of its own.
            ".amplifier/.amplifier/agents/ours.md": agent.format("other"),
            **dict.fromkeys(("ours/x.py", "ours.txt", "other/x.py", "other.txt"), ""),
            "one.md": "text\n@./two.md\n",
            "two.md": "text\n",
        },
    )
    write_files(tmp_path / "home/agents", {"theirs.md": "---\nname: theirs\n---\nmine\n"})
    found = set(names(project))
    assert {"one.md", "two.md", "ours/x.py", "ours.txt"} <= found
    assert not {name for name in found if "theirs" in name}
    before = look(project).hash
    append(project, "two.md")
    assert look(project).hash != before


def test_the_text_of_files_outside_the_project_is_not_shown(project: Path, tmp_path: Path) -> None:
    """A log would show the user's own secrets."""
    write_files(tmp_path, {"secret": "s3cret"})
    write_files(project, {".amplifier/settings.yaml": f"instruction: |\n  @{tmp_path}/secret\n"})
    found = look(project)
    assert found.entries[f"{tmp_path}/secret"].text is None
    assert "s3cret" not in "".join(changes({}, found.entries))
    assert f"{tmp_path}/secret" in listing(found)[0]


def test_module_config_and_addresses_select_no_files(project: Path) -> None:
    text = (
        "tools: [{module: t, source: git+https://host/repo, config: {source: /etc, extends: /}}]\n"
    )
    write_files(project, {".amplifier/settings.yaml": text})
    assert set(names(project)) == set(FILES)


def test_a_namespace_that_is_called_source_selects_no_module(project: Path) -> None:
    text = "namespaces: {source: ../.., orchestrator_source: [../..]}\n"
    write_files(project, {".amplifier/profiles/mine.yaml": text, "big.txt": ""})
    assert set(names(project)) == set(FILES)


@pytest.mark.parametrize(
    "text",
    [
        "sources: {config: ../evil}",
        "agents: {config: {tools: [{module: t, source: ../evil}]}}",
        "agents: {tools: {tools: [{module: t, source: ../evil}]}}",
        "agents: {inline: {config: {session: {orchestrator: {module: t, source: ../evil}}}}}",
        "agents: [{name: config, hooks: [{module: t, source: ../evil}]}]",
        "tools: [{module: config, config: {a: 1}, source: ../evil}]",
    ],
)
def test_a_name_cannot_hide_a_source(project: Path, text: str) -> None:
    write_files(project, {".amplifier/settings.yaml": text, "evil/x.py": ""})
    assert "evil/x.py" in names(project)


@pytest.mark.parametrize(
    "text", ["a: [", "\0", "- 1", "&a [*a]", "extends: ../..", "extends: ~absent/x", "extends: [x]"]
)
def test_invalid_documents_are_ignored(project: Path, text: str) -> None:
    write_files(project, {".amplifier/profiles/mine.yaml": text})
    assert ".amplifier/profiles/mine.yaml" in names(project)


# -- links, special files, limits ---------------------------------------------------------


def test_the_folder_must_not_be_a_link(project: Path, tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other/.amplifier").symlink_to(project / ".amplifier")
    with pytest.raises(ConfigError, match="is a link"):
        look(tmp_path / "other")


@pytest.mark.parametrize("target", ["/etc/passwd", "../../secret", "/", "../.."])
def test_links_out_of_the_project_are_refused(project: Path, tmp_path: Path, target: str) -> None:
    (tmp_path / "secret").write_text("x")
    (project / ".amplifier/link").symlink_to(target)
    with pytest.raises(ConfigError, match="is a link out of the project"):
        look(project)


def test_links_inside_the_project_are_covered_with_their_target(project: Path) -> None:
    write_files(project, {"shared/p.yaml": "tools: [{module: t, source: ../t}]\n", "t/t.py": ""})
    (project / ".amplifier/t").write_text("not what the link means")
    (project / ".amplifier/profiles/shared.yaml").symlink_to("../../shared/p.yaml")
    (project / ".amplifier/modules/tool-y").symlink_to("../../t")
    (project / ".amplifier/loop").symlink_to(".")
    (project / ".amplifier/nothing").symlink_to("nowhere")
    found = look(project)
    assert {"shared/p.yaml", "t/t.py"} < set(found.entries)
    # What is read through the link starts from where the link is.
    assert found.covers(project / ".amplifier/profiles/../t")
    before = found.hash
    append(project, "t/t.py")
    assert look(project).hash != before


def test_paths_of_documents_in_a_linked_folder_are_relative_to_the_link(project: Path) -> None:
    write_files(project, {"plans/p.yaml": "tools: [{module: t, source: ../../t}]\n", "t/t.py": ""})
    (project / ".amplifier/agents").symlink_to("../plans")
    assert "t/t.py" in names(project)


def test_links_in_a_selected_folder_are_not_followed(project: Path, tmp_path: Path) -> None:
    write_files(tmp_path / "elsewhere", {"x.py": ""})
    write_files(project, {".amplifier/settings.yaml": "sources: {t: ../t}\n", "t/t.py": ""})
    (project / "t/out").symlink_to(tmp_path / "elsewhere")
    found = look(project)
    assert found.entries["t/out"].kind == "link"
    assert not found.covers(project / "t/out/x.py")


def test_devices_and_system_folders_are_not_opened(project: Path) -> None:
    text = "sources: {a: /dev/zero, b: /dev/tty, c: /proc/self/fd}\nextends: /dev/zero\n"
    agents = "agents: [/dev/zero]\ninstruction: |\n  @/dev/zero\n"
    write_files(project, {".amplifier/settings.yaml": text + agents})
    assert look(project).entries["/dev/zero"].kind == "special"


@pytest.mark.skipif(os.name == "nt", reason="there are no such files")
@pytest.mark.parametrize("kind", ["fifo", "socket"])
def test_special_files_are_never_opened(project: Path, kind: str) -> None:
    write_files(project, {".amplifier/profiles/mine.yaml": "x-a: 1\n", "t/t.py": ""})
    write_files(project, {".amplifier/settings.yaml": "sources: {t: ../t}\n"})

    def make(path: Path) -> None:
        if kind == "fifo":
            os.mkfifo(path)
            return
        os.chdir(path.parent)  # the name of a socket is limited
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(path.name)

    before = os.getcwd()
    try:
        make(project / "t/special")
        assert look(project).entries["t/special"].kind == "special"
        make(project / ".amplifier/special")
        with pytest.raises(ConfigError, match="is not a file, folder or link"):
            look(project)
    finally:
        os.chdir(before)


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="root reads everything")
def test_an_unreadable_file_is_refused(project: Path) -> None:
    (project / ".amplifier/notes.txt").chmod(0)
    with pytest.raises(ConfigError, match=r"notes\.txt: Permission denied"):
        look(project)


def test_too_many_files_are_refused_before_all_are_read(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_module, "MAX_FILES", 20)
    for index in range(15):
        (project / ".amplifier" / str(index)).mkdir()
    with pytest.raises(ConfigError, match="more than 20 files"):
        look(project)


def test_documents_that_take_too_long_are_refused(
    project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(content_module, "MAX_SECONDS", -1.0)
    with pytest.raises(ConfigError, match="to read"):
        look(project)


def test_too_many_bytes_are_refused(project: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(content_module, "MAX_BYTES", 1 << 20)
    with (project / ".amplifier/big").open("wb") as file:
        file.truncate(1 << 40)  # sparse: reading all of it would take forever
    with pytest.raises(ConfigError, match="more than 1 MiB"):
        look(project)


def test_names_and_bytes_that_are_not_text_are_covered(project: Path) -> None:
    name = os.fsdecode(b"bad-\xff\xfe\n\x1b[31m")
    try:
        (project / ".amplifier" / name).write_bytes(bytes(range(256)))
    except OSError:
        pytest.skip("this file system wants names to be text")
    found = look(project)
    entry = found.entries[f".amplifier/{name}"]
    assert entry.text is None
    before = found.hash
    (project / ".amplifier" / name).rename(project / ".amplifier" / os.fsdecode(b"bad-\xff\xfd"))
    assert look(project).hash != before
