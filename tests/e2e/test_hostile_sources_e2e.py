"""Hostile sources in the real program: nothing they contain is executed."""

import io
import json
import os
import subprocess
import tarfile
import zipfile
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.app.plan.test_source_syntax import HOSTILE
from tests.e2e.test_module_sources_e2e import plan, run, tool_result
from tests.support.cli import Finished, run_amplifier
from tests.support.module_repositories import SEED_TOOL, Repository, git, write_files


@pytest.fixture
def marker(tmp_path: Path) -> Path:
    """What a command leaves behind if it is executed."""
    return tmp_path / "executed"


def run_with(tmp_path: Path, sources: dict[str, str], **env: str) -> Finished:
    """Run a plan that names them all at once."""
    text = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-mock", "config": {"replies": ["ran"]}}],
        "tools": [{"module": name, "source": source} for name, source in sources.items()],
    }
    write_files(tmp_path, {"plan.yaml": json.dumps(text, indent=1)})
    return run_amplifier("run", "--plan", tmp_path / "plan.yaml", "go", cwd=tmp_path, env=env)


def commands(marker: Path) -> list[str]:
    """Texts that run a command when passed on without a check."""
    touch = f"touch {marker}"
    coded = touch.replace(" ", "%20")
    return [
        f"git+ext::sh -c '{touch}'",
        f"git+ext::sh -c {coded}",
        f"git+ext::touch%20{marker}",
        f"git+https://host/r@--upload-pack={coded}",
        f"git+https://host/r@--exec={coded}",
        f"git+file:///srv/r@--upload-pack=`{touch}`",
        f"git+ssh://-oProxyCommand={coded}/r",
        f"git+ssh://-oProxyCommand={coded}@host/r",
        f"git+ssh://host;{coded}/r",
        f"git+ssh://host`{coded}`/r",
        f"git+ssh://$({coded})/r",
        f"git+https://host/$({touch})",
        f"git+https://host/r@$({coded})",
        f"git+https://host/r#subdirectory=$(touch)/../{marker}",
        f"git+--upload-pack={touch}",
        f"git+-c core.sshCommand='{touch}' ssh://host/r",
        f"https://host/x.zip;{touch}",
        f"https://host/`{touch}`.exe",
        f"|{touch}",
        f"; {touch}",
        f"$({touch})",
        f"`{touch}`",
        f"package>=1; {touch}",
        f"package>=1 --config-settings={touch}",
        f"-e {marker}",
        f"--index-url=file://{marker}",
    ]


def test_command_like_texts_are_reported_with_their_lines(tmp_path: Path, marker: Path) -> None:
    texts = [*commands(marker), *filter(None, HOSTILE)]
    assert len(texts) > 100
    # No more than 100 problems are listed at once.
    for first in (texts[:90], texts[90:]):
        done = run_with(tmp_path, {f"tool-{number}": text for number, text in enumerate(first)})
        assert (done.code, done.stdout) == (78, "")
        assert "Traceback" not in done.stderr
        lines = (tmp_path / "plan.yaml").read_text().splitlines()
        for number, text in enumerate(first):
            line = next(n for n, one in enumerate(lines, 1) if f'"tool-{number}"' in one) + 1
            assert f"plan.yaml:{line}:" in done.stderr, text
    assert not marker.exists()


# -- repositories and archives -----------------------------------------------------------


def trap(tmp_path: Path, marker: Path) -> Path:
    script = write_files(tmp_path, {"trap.sh": f"#!/bin/sh\ntouch {marker}\ncat\n"}) / "trap.sh"
    script.chmod(0o755)
    return script


def evil_config(script: Path) -> str:
    return (
        f"[core]\n sshCommand = {script}\n fsmonitor = {script}\n hooksPath = {script.parent}\n"
        f" gitProxy = {script}\n askPass = {script}\n alternateRefsCommand = {script}\n"
        f"[uploadpack]\n packObjectsHook = {script}\n[credential]\n helper = {script}\n"
        f'[filter "lfs"]\n process = {script}\n smudge = {script}\n required = true\n'
        f'[diff]\n external = {script}\n[url "ext::{script} "]\n insteadOf = https://\n'
    )


def with_tree(repository: Repository, listed: str) -> str:
    """Make a branch of a tree that git itself would not make."""
    tree = subprocess.run(
        ["git", "mktree"], cwd=repository.folder, input=listed, text=True, capture_output=True,
        check=True,
    ).stdout.strip()  # fmt: skip
    commit = git(repository.folder, "commit-tree", "-m", "evil", tree)
    git(repository.folder, "branch", "evil", commit)
    return f"{repository.url}@evil"


def blob(repository: Repository, text: str) -> str:
    return subprocess.run(
        ["git", "hash-object", "-w", "--stdin"], cwd=repository.folder, input=text, text=True,
        capture_output=True, check=True,
    ).stdout.strip()  # fmt: skip


def folder_out(repository: Repository, tmp_path: Path) -> str:
    (repository.folder / "out").symlink_to(tmp_path)
    repository.commit(SEED_TOOL)
    return f"{repository.url}#subdirectory=out"


def link_out(repository: Repository, tmp_path: Path) -> str:
    write_files(tmp_path / "secret", {"__init__.py": "def mount(): ..."})
    (repository.folder / "my_tool").symlink_to(tmp_path / "secret")
    repository.commit({"pyproject.toml": SEED_TOOL["pyproject.toml"]})
    return repository.url


def path_up(repository: Repository, tmp_path: Path) -> str:
    repository.commit({"a.py": ""})
    inner = subprocess.run(
        ["git", "mktree"], cwd=repository.folder, text=True, capture_output=True, check=True,
        input=f"100644 blob {blob(repository, 'evil')}\tevil.py\n",
    ).stdout.strip()  # fmt: skip
    return with_tree(repository, f"040000 tree {inner}\t..\n")


def own_git_folder(repository: Repository, tmp_path: Path) -> str:
    repository.commit({"a.py": ""})
    config = blob(repository, evil_config(tmp_path / "trap.sh"))
    inner = subprocess.run(
        ["git", "mktree"], cwd=repository.folder, text=True, capture_output=True, check=True,
        input=f"100644 blob {config}\tconfig\n",
    ).stdout.strip()  # fmt: skip
    return with_tree(repository, f"040000 tree {inner}\t.git\n")


def missing_parts(repository: Repository, tmp_path: Path) -> str:
    """A partial clone: what serves it would fetch the rest by the commands of its own config."""
    repository.commit({"a.py": "gone"})
    listed = git(repository.folder, "rev-parse", "HEAD:a.py")
    (repository.folder / ".git" / "objects" / listed[:2] / listed[2:]).unlink()
    with (repository.folder / ".git" / "config").open("a") as file:
        file.write(evil_config(tmp_path / "trap.sh"))
        file.write(
            "[extensions]\n partialClone = origin\n"
            '[remote "origin"]\n url = ssh://127.0.0.1/x\n promisor = true\n'
        )
    return repository.url


def no_such_ref(repository: Repository, tmp_path: Path) -> str:
    repository.commit({"a.py": ""})
    return f"{repository.url}@refs/heads/none"


def not_a_commit(repository: Repository, tmp_path: Path) -> str:
    repository.commit({"a.py": "x"})
    return f"{repository.url}@{git(repository.folder, 'rev-parse', 'HEAD:a.py')}"


def unrelated_commit(repository: Repository, tmp_path: Path) -> str:
    repository.commit({"a.py": "x"})
    other = Repository(tmp_path / f"other-{repository.folder.name}")
    return f"{repository.url}@{other.commit({'b.py': 'y'})}"


def a_file(repository: Repository, tmp_path: Path) -> str:
    return f"git+file://{tmp_path}/trap.sh"


def tar_with(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> Callable[..., str]:
    def make(repository: Repository, tmp_path: Path) -> str:
        file = tmp_path / f"{repository.folder.name}.tar"
        with tarfile.open(file, "w") as archive:
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, target
            archive.addfile(info, io.BytesIO())
        return str(file)

    return make


def zip_with(name: str, mode: int = 0o100644, content: str = "") -> Callable[..., str]:
    def make(repository: Repository, tmp_path: Path) -> str:
        file = tmp_path / f"{repository.folder.name}.zip"
        with zipfile.ZipFile(file, "w") as archive:
            info = zipfile.ZipInfo("x")
            info.filename, info.external_attr = name, mode << 16
            archive.writestr(info, content)
        return str(file)

    return make


def another_hash(repository: Repository, tmp_path: Path) -> str:
    return zip_with("a.py")(repository, tmp_path) + f"#sha256={'0' * 64}"


def random_bytes(name: str) -> Callable[..., str]:
    def make(repository: Repository, tmp_path: Path) -> str:
        (tmp_path / name).write_bytes(os.urandom(10_000))
        return str(tmp_path / name)

    return make


HOSTILE_THINGS: dict[str, tuple[Callable[[Repository, Path], str], str]] = {
    "folder-out": (folder_out, "leaves the repository"),
    "link-out": (link_out, "has a link that leaves the repository: my_tool"),
    "path-up": (path_up, "invalid path"),
    "own-git-folder": (own_git_folder, "invalid path"),
    "missing-parts": (missing_parts, "cannot fetch"),
    "no-such-ref": (no_such_ref, "has no branch or tag"),
    "not-a-commit": (not_a_commit, "cannot fetch"),
    "unrelated-commit": (unrelated_commit, "cannot fetch"),
    "a-file": (a_file, "cannot fetch"),
    "tar-up": (tar_with("../evil.py"), "is not a valid path inside the archive"),
    "tar-absolute": (tar_with("/tmp/evil.py"), "is not a valid path inside the archive"),
    "tar-link": (tar_with("my_tool", tarfile.SYMTYPE, "/etc"), "points outside it"),
    "tar-link-up": (tar_with("a/my_tool", tarfile.SYMTYPE, "../../.."), "points outside it"),
    "tar-same": (
        tar_with("passwd.py", tarfile.LNKTYPE, "/etc/passwd"),
        "is not a valid path inside the archive",
    ),
    "tar-device": (tar_with("null", tarfile.CHRTYPE), "a device or a pipe"),
    "tar-pipe": (tar_with("pipe", tarfile.FIFOTYPE), "a device or a pipe"),
    "zip-up": (zip_with("../../evil.py"), "is not a valid path inside the archive"),
    "zip-absolute": (zip_with("/tmp/evil.py"), "is not a valid path inside the archive"),
    "zip-backslash": (zip_with("..\\evil.py"), "is not a valid path inside the archive"),
    "zip-link": (zip_with("link", 0o120777, "/etc/passwd"), "points outside it"),
    "zip-device": (zip_with("device", 0o020666), "a device or a pipe"),
    "zip-other-hash": (another_hash, "does not match its hash"),
    "no-zip": (random_bytes("no.zip"), "is damaged"),
    "no-tar": (random_bytes("no.tar.gz"), "is damaged"),
    "no-wheel": (random_bytes("no-1.0-py3-none-any.whl"), "is damaged"),
    "strange-wheel": (random_bytes("strange.whl"), "is not a valid wheel file name"),
}


def test_hostile_repositories_and_archives_are_reported_all_at_once(
    tmp_path: Path, marker: Path
) -> None:
    trap(tmp_path, marker)
    sources: dict[str, str] = {}
    for name, (make, _) in HOSTILE_THINGS.items():
        sources[name] = make(Repository(tmp_path / "remotes" / name), tmp_path)
    done = run_with(tmp_path, sources)
    assert done.code == 3
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert f"{len(sources)} modules are unavailable" in done.stderr
    reported = done.stderr.splitlines()
    for name, (_, message) in HOSTILE_THINGS.items():
        lines = [line for line in reported if f": {name}: " in line]
        assert len(lines) == 1, name
        assert "plan.yaml:" in lines[0], name
        assert message in lines[0], lines[0]
    assert not marker.exists()
    assert not Path("/tmp/evil.py").exists()
    assert not list(tmp_path.rglob("evil.py"))


# -- a good module in a hostile repository --------------------------------------------


def test_nothing_in_a_repository_is_executed(tmp_path: Path, marker: Path) -> None:
    script = trap(tmp_path, marker)
    repository = Repository(tmp_path / "remotes" / "my-tool")
    for hook in ("post-checkout", "post-index-change", "reference-transaction", "pre-auto-gc"):
        (repository.folder / ".git" / "hooks" / hook).parent.mkdir(exist_ok=True)
        (repository.folder / ".git" / "hooks" / hook).symlink_to(script)
    modules = f'[submodule "x"]\n path = x\n url = ext::{script}\n update = !{script}\n'
    files = {
        **SEED_TOOL,
        ".gitattributes": "* filter=lfs diff=evil merge=evil -text\n*.py ident working-tree-encoding=UTF-16\n",
        ".gitmodules": modules,
        ".lfsconfig": f"[lfs]\n url = ext::{script}\n",
        ".gitconfig": evil_config(script),
        "setup.py": f"import os; os.system('touch {marker}')\n",
        "conftest.py": f"import os; os.system('touch {marker}')\n",
        "sitecustomize.py": f"import os; os.system('touch {marker}')\n",
        ".envrc": f"touch {marker}\n",
    }
    # They have no effect in the author's repository.
    plain = "* -text -filter -ident -working-tree-encoding\n"
    write_files(repository.folder / ".git" / "info", {"attributes": plain})
    repository.commit(files, tag="v1")
    marker.unlink(missing_ok=True)  # committing ran the hooks
    with (repository.folder / ".git" / "config").open("a") as file:
        file.write(evil_config(script))
    write_files(tmp_path / "user", {".gitconfig": evil_config(script)})
    env = {
        "HOME": str(tmp_path / "user"),
        "GIT_CONFIG_GLOBAL": str(tmp_path / "user" / ".gitconfig"),
        "GIT_EXTERNAL_DIFF": str(script),
        "GIT_ASKPASS": str(script),
        "GIT_PROXY_COMMAND": str(script),
        "GIT_TEMPLATE_DIR": str(repository.folder / ".git"),
    }
    done = run(plan(tmp_path, f"{repository.url}@v1"), tmp_path, env=env)
    assert "Hello, world!" in tool_result(done)
    assert not marker.exists()
