"""Fetching from a real server over smart HTTP and TLS."""

import gzip
import os
import select
import shutil
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler
from pathlib import Path

import pytest

from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch.git import GitCache
from amplifier_app.sources.resolver import AppModuleSourceResolver
from tests.app.sources.test_git import source, trap
from tests.app.sources.test_resolver import greeting
from tests.support.cli import start_python
from tests.support.git_http import CERTIFICATE, GitServer, Request
from tests.support.http_server import serving
from tests.support.module_repositories import SEED_TOOL, Repository, git


@pytest.fixture
def server(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[GitServer]:
    monkeypatch.setenv("GIT_SSL_CAINFO", str(CERTIFICATE))
    (tmp_path / "remotes").mkdir(exist_ok=True)
    running = GitServer(tmp_path / "remotes")
    yield running
    running.close()


@pytest.fixture
def cache(tmp_path: Path) -> GitCache:
    return GitCache(tmp_path / "cache")


def url(server: GitServer, suffix: str = "") -> str:
    return f"git+{server.url}/my-tool.git{suffix}"


def posts(server: GitServer) -> list[Request]:
    return [request for request in server.requests if request.method == "POST"]


async def test_a_tag_and_a_commit_are_mounted(server: GitServer, repository: Repository) -> None:
    first = repository.commit(SEED_TOOL, tag="v1", annotated=True)
    repository.commit({"my_tool/__init__.py": "raise RuntimeError('not the tag')\n"})
    assert await greeting(url(server, "@v1")) == "Hello, world!"
    assert await greeting(url(server, f"@{first}")) == "Hello, world!"


def test_the_history_is_not_fetched(
    server: GitServer, repository: Repository, cache: GitCache
) -> None:
    repository.commit({"a.py": "old"})
    repository.commit({"a.py": "new"})
    assert (cache.fetch(source(url(server))).folder / "a.py").read_text() == "new"
    assert b"deepen 1" in _unzipped(posts(server)[-1])


def _unzipped(request: Request) -> bytes:
    return gzip.decompress(request.body) if request.body[:2] == b"\x1f\x8b" else request.body


def test_only_the_files_of_a_subdirectory_are_fetched(
    server: GitServer, repository: Repository, cache: GitCache
) -> None:
    git(repository.folder, "config", "uploadpack.allowFilter", "true")
    files = {"mods/one/a.py": "1", "mods/two/b.py": "2", "big.d/huge.bin": "x", "top.txt": "t"}
    commit = repository.commit(files)
    checkout = cache.fetch(source(url(server, "#subdirectory=mods/one")))
    assert checkout.commit == commit
    root = checkout.folder.parents[1]
    found = sorted(path.relative_to(root).as_posix() for path in root.rglob("*") if path.is_file())
    assert found == ["mods/one/a.py", "top.txt"]
    assert any(b"filter blob:none" in _unzipped(request) for request in posts(server))
    other = cache.fetch(source(url(server, "#subdirectory=mods/two")))
    assert (other.folder / "b.py").read_text() == "2"
    whole = cache.fetch(source(url(server)))
    assert (whole.folder / "big.d/huge.bin").read_text() == "x"
    with pytest.raises(SourceError, match="has no folder 'mods/three'"):
        cache.fetch(source(url(server, "#subdirectory=mods/three")))


def test_a_subdirectory_that_needs_more_of_the_repository_gets_it(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    git(repository.folder, "config", "uploadpack.allowFilter", "true")
    (repository.folder / "mods" / "link").mkdir(parents=True)
    (repository.folder / "mods" / "link" / "link").symlink_to("../../shared/data.txt")
    required = '[tool.uv.sources]\nx = {path = "../../shared"}\n'
    repository.commit(
        {"mods/link/a.py": "1", "mods/uv/pyproject.toml": required, "shared/data.txt": "data"}
    )
    for how in ("link", "uv"):
        cache = GitCache(tmp_path / how)
        folder = cache.fetch(source(url(server, f"#subdirectory=mods/{how}"))).folder
        assert (folder / "../../shared/data.txt").read_text() == "data", how


@pytest.mark.parametrize("suffix", ["", "#subdirectory=mods"])
def test_a_server_that_only_serves_refs_is_supported(
    suffix: str, server: GitServer, repository: Repository, cache: GitCache
) -> None:
    # Version 0 of the protocol keeps to what refs point to.
    def version_0(request: Request) -> None:
        request.headers.pop("Git-Protocol", None)

    server.before = version_0
    old = repository.commit({"mods/a.py": "old"})
    repository.commit({"mods/a.py": "new"})
    checkout = cache.fetch(source(url(server, f"@{old}{suffix}")))
    assert [path.read_text() for path in checkout.folder.rglob("a.py")] == ["old"]


def test_credentials_reach_only_the_server(
    tmp_path: Path, repository: Repository, cache: GitCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GIT_SSL_CAINFO", str(CERTIFICATE))
    repository.commit({"a.py": "1"})
    private = GitServer(tmp_path / "remotes", user="me:s3cr:t")
    # Every git that is started leaves its arguments behind.
    real = shutil.which("git")
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "git").write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/argv\nexec {real} "$@"\n'
    )
    (tmp_path / "bin" / "git").chmod(0o755)
    try:
        with pytest.raises(SourceError) as refused:
            cache.fetch(source(f"git+{private.url}/my-tool.git"))
        monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
        wrong = private.url.replace("https://", "https://me:wr0ng@")
        with pytest.raises(SourceError) as raised:
            cache.fetch(source(f"git+{wrong}/my-tool.git"))
        right = private.url.replace("https://", "https://me:s3cr%3At@")
        checkout = cache.fetch(source(f"git+{right}/my-tool.git"))
    finally:
        private.close()
    assert "git+https://USER:${TOKEN}@" in (refused.value.hint or "")
    assert "wr0ng" not in str(raised.value)
    assert (checkout.folder / "a.py").read_text() == "1"
    files = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert files
    assert "s3cr" not in (tmp_path / "argv").read_text()
    assert not [path for path in files if "s3cr" in path.read_text()]


def test_a_credential_helper_of_the_user_is_asked(
    tmp_path: Path, repository: Repository, cache: GitCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    commit = repository.commit({"a.py": "1"})
    private = GitServer(tmp_path / "remotes", user="me:s3cret")
    log = tmp_path / "helper.log"
    helper = tmp_path / "helper"
    helper.write_text(
        f'#!/bin/sh\necho "$1 model key:$ACME_API_KEY" >> {log}\n'
        'test "$1" != get || printf "username=me\\npassword=%s\\n" "$HOST_TOKEN"\n'
    )
    helper.chmod(0o755)
    config = f'[credential "{private.url}"]\n helper = {helper}\n'
    (tmp_path / "gitconfig").write_text(config)
    monkeypatch.setenv("GIT_SSL_CAINFO", str(CERTIFICATE))
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    monkeypatch.setenv("HOST_TOKEN", "s3cret")
    monkeypatch.setenv("ACME_API_KEY", "sk-model")
    address = f"git+{private.url}/my-tool.git"
    try:
        assert cache.fetch(source(address)).commit == commit
        assert {*log.read_text().splitlines()} == {"get model key:", "store model key:"}
        # A wrong password in the URL makes git erase what the helper knows.
        log.write_text("")
        with pytest.raises(SourceError):
            cache.fetch(source(address.replace("https://", "https://me:wr0ng@")))
        assert log.read_text() == ""
        # One that only a repository has configured is not.
        (tmp_path / "gitconfig").write_text("")
        work = Repository(tmp_path / "work")
        with (work.folder / ".git" / "config").open("a") as file:
            file.write(config)
        monkeypatch.chdir(work.folder)
        with pytest.raises(SourceError) as refused:
            GitCache(tmp_path / "other").fetch(source(address))
        assert "credential helper" in (refused.value.hint or "")
        assert log.read_text() == ""
    finally:
        private.close()


def test_a_proxy_of_the_user_is_used(
    server: GitServer,
    repository: Repository,
    cache: GitCache,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    commit = repository.commit({"a.py": "1"})
    monkeypatch.setenv("GIT_CONFIG_GLOBAL", str(tmp_path / "gitconfig"))
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
    with tunnelling_proxy() as (port, targets):
        (tmp_path / "gitconfig").write_text(f"[http]\n proxy = http://127.0.0.1:{port}\n")
        assert cache.fetch(source(url(server))).commit == commit
    assert {*targets} == {server.url.removeprefix("https://")}


@contextmanager
def tunnelling_proxy() -> Iterator[tuple[int, list[str]]]:
    """An HTTP proxy that only tunnels: its port, and the targets that clients asked for."""
    targets: list[str] = []

    class Handler(BaseHTTPRequestHandler):
        def do_CONNECT(self) -> None:
            targets.append(self.path)
            host, _, port = self.path.rpartition(":")
            with socket.create_connection((host, int(port))) as upstream:
                self.send_response(200)
                self.end_headers()
                ends = {self.connection: upstream, upstream: self.connection}
                while True:
                    for end in select.select([*ends], [], [], 10)[0]:
                        if not (data := end.recv(65536)):
                            return
                        ends[end].sendall(data)

    with serving(Handler) as address:
        yield int(address.rpartition(":")[2]), targets


def test_an_untrusted_certificate_is_refused(
    server: GitServer, repository: Repository, cache: GitCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    repository.commit({"a.py": "1"})
    monkeypatch.delenv("GIT_SSL_CAINFO")
    monkeypatch.setenv("GIT_SSL_NO_VERIFY", "1")
    with pytest.raises(SourceError, match="certificate"):
        cache.fetch(source(url(server)))


def test_a_redirect_to_another_transport_is_refused(
    server: GitServer, repository: Repository, cache: GitCache, tmp_path: Path
) -> None:
    trace, script = trap(tmp_path)
    repository.commit({"a.py": "1"})
    targets = [
        f"ext::{script}",
        f"file://{repository.folder}",
        "http://127.0.0.1:1/my-tool.git/info/refs?service=git-upload-pack",
        f"ssh://-oProxyCommand={script}/x",
    ]
    for target in targets:
        server.before = lambda request, to=target: (302, {"Location": to})  # type: ignore[misc]
        with pytest.raises(SourceError, match="cannot fetch"):
            cache.fetch(source(url(server)))
    assert not trace.exists()


def test_offline_uses_the_last_commit_of_a_ref(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    offline = GitCache(tmp_path / "cache", offline=True)
    with pytest.raises(
        SourceError, match=r"main of .* is not in the cache and cannot be downloaded offline"
    ) as raised:
        offline.fetch(source(url(server, "@main")))
    assert raised.value.hint == "Run once without --offline"
    first = repository.commit({"a.py": "1"})
    GitCache(tmp_path / "cache").fetch(source(url(server, "@main")))
    repository.commit({"a.py": "2"})
    server.requests.clear()
    assert offline.fetch(source(url(server, "@main"))).commit == first
    for suffix in ("", "@other", f"@{'a' * 40}"):
        with pytest.raises(SourceError, match="is not in the cache"):
            offline.fetch(source(url(server, suffix)))
    assert server.requests == []


async def test_everything_missing_offline_is_reported_at_once(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    repository.commit(SEED_TOOL)
    AppModuleSourceResolver().resolve("my-tool", url(server))
    tools = [
        {"module": "my-tool", "source": url(server)},
        {"module": "a", "source": url(server, "@v9")},
        {"module": "b", "source": "https://127.0.0.1:1/x.zip"},
        {"module": "c", "source": "not-there>=1"},
    ]
    plan = {"session": {"orchestrator": "loop-basic", "context": "context-simple"}, "tools": tools}
    server.requests.clear()
    with pytest.raises(SourceError, match="3 modules are unavailable") as raised:
        await AppModuleSourceResolver(offline=True).prefetch(plan)
    text = str(raised.value)
    assert "a: v9 of https://127.0.0.1" in text
    assert "b: https://127.0.0.1:1/x.zip is not in the cache" in text
    assert "c: cannot install not-there>=1 offline: not in the cache" in text
    assert server.requests == []


def test_processes_that_fetch_one_commit_at_once_fetch_it_once(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit({f"m{n}.py": "x" * 2000 for n in range(50)}, tag="v1")
    code = (
        "import sys; from pathlib import Path\n"
        "from amplifier_app.sources.fetch.git import GitCache\n"
        "from amplifier_app.plan.source_spec import parse_source\n"
        "checkout = GitCache(Path(sys.argv[1])).fetch(parse_source(sys.argv[2], Path('/')))\n"
        "print(checkout.commit, len(list(checkout.folder.glob('m*.py'))))\n"
    )
    arguments = (code, tmp_path / "cache", url(server, "@v1"))
    pipe = subprocess.PIPE
    running = [start_python(*arguments, stdout=pipe, text=True) for _ in range(4)]
    answers = {process.communicate()[0].strip() for process in running}
    assert answers == {f"{commit} 50"}
    assert sum(b"deepen 1" in _unzipped(request) for request in posts(server)) == 1
    (home,) = (path for path in (tmp_path / "cache").iterdir() if path.is_dir())
    assert sorted(path.name for path in home.iterdir()) == sorted([".lock", "refs", commit])


def test_a_killed_fetch_does_not_block_the_next(
    server: GitServer, repository: Repository, tmp_path: Path
) -> None:
    commit = repository.commit({"a.py": "1"}, tag="v1")
    arrived, go = threading.Event(), threading.Event()

    def hold(request: Request) -> None:
        if request.method == "POST" and b"deepen" in _unzipped(request):
            arrived.set()
            go.wait(60)

    server.before = hold
    code = (
        "import sys; from pathlib import Path\n"
        "from amplifier_app.sources.fetch.git import GitCache\n"
        "from amplifier_app.plan.source_spec import parse_source\n"
        "GitCache(Path(sys.argv[1])).fetch(parse_source(sys.argv[2], Path('/')))\n"
    )
    killed = start_python(code, tmp_path / "cache", url(server, "@v1"))
    assert arrived.wait(60)
    killed.send_signal(signal.SIGKILL)
    killed.wait()
    server.before = lambda request: None
    checkout = GitCache(tmp_path / "cache").fetch(source(url(server, "@v1")))
    go.set()
    assert checkout.commit == commit
    assert (checkout.folder / "a.py").read_text() == "1"
