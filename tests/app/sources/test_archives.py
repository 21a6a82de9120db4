"""Archives by path and by URL, from a real server on loopback."""

import asyncio
import hashlib
import os
import subprocess
import threading
import zipfile
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.plan.source_spec import ArchiveSource, parse_source
from amplifier_app.sources.errors import SourceError
from amplifier_app.sources.fetch import archives
from amplifier_app.sources.fetch.archives import ArchiveCache, Unpacked
from amplifier_app.sources.resolver import AppModuleSourceResolver
from amplifier_app.sources.stopping import run_in_thread
from amplifier_support.programs import Stopped
from tests.app.sources.test_resolver import greeting
from tests.support.cli import start_python
from tests.support.git_http import CERTIFICATE, with_tls
from tests.support.module_repositories import SEED_TOOL
from tests.support.packages import sha256, tar, wheel

TOOL = {name: text for name, text in SEED_TOOL.items() if name.endswith(".py")}


def source(text: str | Path) -> ArchiveSource:
    parsed = parse_source(str(text), Path("/"))
    assert isinstance(parsed, ArchiveSource)
    return parsed


@pytest.fixture
def cache(tmp_path: Path) -> ArchiveCache:
    return ArchiveCache(tmp_path / "cache")


def zipped(file: Path, files: dict[str, str]) -> Path:
    with zipfile.ZipFile(file, "w", zipfile.ZIP_DEFLATED) as archive:
        for name, text in files.items():
            archive.writestr(name, text)
    return file


class Server:
    """Serves prepared answers and records the requests."""

    def __init__(self, *, tls: bool = False) -> None:
        self.answers: dict[str, tuple[int, dict[str, str], bytes]] = {}
        self.asked: list[tuple[str, dict[str, str]]] = []
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append((self.path, dict(self.headers)))
                status, headers, body = outer.answers.get(self.path, (404, {}, b""))
                etag = headers.get("ETag")
                if etag and self.headers.get("If-None-Match") == etag:
                    status, body = 304, b""
                self.send_response(status)
                for name, value in ({"Content-Length": str(len(body))} | headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        if tls:
            with_tls(self._server)
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.close()


# -- a module in every kind of archive ---------------------------------------------------


@pytest.mark.parametrize(
    ("name", "top"),
    [
        ("m.tar", ""),
        ("m.tgz", "my-tool-1.0"),
        ("m.tar.bz2", ""),
        ("m.tar.xz", ""),
        ("M.TAR.GZ", "a"),
    ],
)
async def test_a_module_in_a_tar_is_mounted(name: str, top: str, tmp_path: Path) -> None:
    assert await greeting(str(tar(tmp_path / name, SEED_TOOL, top=top))) == "Hello, world!"


async def test_a_module_in_a_zip_is_mounted(tmp_path: Path) -> None:
    file = zipped(
        tmp_path / "m.zip", {f"repo-main/{name}": text for name, text in SEED_TOOL.items()}
    )
    assert await greeting(file.as_uri()) == "Hello, world!"


async def test_a_module_in_a_subdirectory_of_an_archive_is_mounted(tmp_path: Path) -> None:
    file = tar(
        tmp_path / "m.tgz", {f"a/b/{name}": text for name, text in SEED_TOOL.items()}, top="x"
    )
    assert await greeting(f"{file}#subdirectory=a/b") == "Hello, world!"
    with pytest.raises(SourceError, match="has no folder 'c'"):
        await greeting(f"{file}#subdirectory=c")


async def test_a_wheel_is_mounted_with_its_requirements(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("UV_FIND_LINKS", str(tmp_path / "wheels"))
    monkeypatch.setenv("UV_NO_INDEX", "1")
    wheel(tmp_path / "wheels", "some-lib", "1.5")
    modules = {"my-tool": "my_tool:mount"}
    requires = ("some-lib>=1", "amplifier-core>=1.6", "other-lib; extra == 'more'")
    file = wheel(tmp_path, "my-mod", "2.0", requires, files=TOOL, modules=modules)
    assert await greeting(str(file)) == "Hello, world!"
    found = AppModuleSourceResolver().resolve("my-tool", str(file))
    assert (found.kind, found.distribution, found.version) == ("archive", "my-mod", "2.0")
    assert found.archive == f"sha256:{sha256(file)}"
    assert found.requirements == {"some-lib": "1.5"}


async def test_a_wheels_data_folder_is_spread(
    tmp_path: Path,
) -> None:
    files = {f"my_mod-1.0.data/purelib/{name}": text for name, text in TOOL.items()}
    files["my_mod-1.0.data/scripts/evil"] = "#!python\n"
    file = wheel(tmp_path, "my-mod", "1.0", files=files, modules={"my-tool": "my_tool:mount"})
    assert await greeting(str(file)) == "Hello, world!"
    folder = AppModuleSourceResolver().resolve("my-tool", str(file)).resolve()
    assert not list(folder.rglob("evil"))


def test_a_wheel_whose_link_points_outside_after_spreading_is_refused(
    tmp_path: Path, cache: ArchiveCache
) -> None:
    file = wheel(tmp_path, "my-mod", "1.0")
    with zipfile.ZipFile(file, "a") as archive:
        info = zipfile.ZipInfo("my_mod-1.0.data/purelib/link")
        info.external_attr = 0o120777 << 16
        archive.writestr(info, "../../my_mod")
        for name in ("out", "out/my_mod"):
            info = zipfile.ZipInfo(f"my_mod-1.0.data/purelib/{name}_link")
            info.external_attr = 0o120777 << 16
            archive.writestr(info, "../../my_mod")
    with pytest.raises(SourceError, match="in the wheel points outside it"):
        cache.fetch(source(file))


@pytest.mark.parametrize(
    ("requires", "metadata", "message"),
    [
        (("not a requirement!",), "", "has an invalid requirement"),
        ((), "Requires-Python: whatever\n", "'requires-python' in .*METADATA is not valid"),
    ],
)
def test_invalid_metadata_is_reported(
    requires: tuple[str, ...], metadata: str, message: str, tmp_path: Path
) -> None:
    file = wheel(tmp_path, "my-mod", "1.0", requires, metadata=metadata)
    with pytest.raises(SourceError, match=message):
        AppModuleSourceResolver().resolve("my-tool", str(file))


def test_a_wheel_without_a_name_is_refused(tmp_path: Path) -> None:
    info = "my_mod-1.0.dist-info"
    files = {"my_mod/__init__.py": "", f"{info}/METADATA": "Metadata-Version: 2.1\n"}
    file = zipped(tmp_path / "my_mod-1.0-py3-none-any.whl", files)
    with pytest.raises(SourceError, match="has no name and version"):
        AppModuleSourceResolver().resolve("my-tool", str(file))


def test_a_wheel_for_another_machine_is_refused(tmp_path: Path, cache: ArchiveCache) -> None:
    file = wheel(tmp_path, "my-mod", "1.0", tag="cp27-cp27m-win32")
    with pytest.raises(SourceError, match="is built for cp27-cp27m-win32, not for this Python"):
        cache.fetch(source(file))
    file.rename(tmp_path / "mine.whl")
    with pytest.raises(SourceError, match="is not a valid wheel file name"):
        cache.fetch(source(tmp_path / "mine.whl"))


def test_a_wheel_for_another_python_is_refused(tmp_path: Path) -> None:
    file = wheel(tmp_path, "my-mod", "1.0", metadata="Requires-Python: >=3.99\n")
    with pytest.raises(SourceError, match=r"my-mod 1\.0 requires Python >=3\.99"):
        AppModuleSourceResolver().resolve("my-tool", str(file))


# -- the cache ---------------------------------------------------------------------------


def test_an_archive_is_unpacked_once_and_again_when_it_changes(
    tmp_path: Path, cache: ArchiveCache, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = zipped(tmp_path / "m.zip", {"a.py": "1", "run.sh": "x"})
    first = cache.fetch(source(file))
    assert first.sha256 == f"sha256:{sha256(file)}"
    assert (first.folder / "a.py").read_text() == "1"
    with monkeypatch.context() as patch:
        patch.setattr(archives, "unpack", None)
        assert cache.fetch(source(file)) == first
    zipped(file, {"a.py": "2"})
    second = cache.fetch(source(file))
    assert (second.folder / "a.py").read_text() == "2"
    assert (first.folder / "a.py").read_text() == "1"
    assert not list((tmp_path / "cache").glob(".stage-*"))


def test_a_wrong_hash_is_refused(tmp_path: Path, cache: ArchiveCache, server: Server) -> None:
    file = zipped(tmp_path / "m.zip", {"a.py": "1"})
    right, wrong = sha256(file), "0" * 64
    server.answers["/m.zip"] = (200, {}, file.read_bytes())
    for text in (str(file), f"{server.url}/m.zip"):
        with pytest.raises(SourceError, match=f"SHA-256 is {right}, expected {wrong}"):
            cache.fetch(source(f"{text}#sha256={wrong}"))
        assert not [path for path in (tmp_path / "cache").iterdir() if path.name == right]
    assert cache.fetch(source(f"{file}#sha256={right.upper()}")).sha256 == f"sha256:{right}"
    server.asked.clear()
    # With a known hash, the cached bytes are used without a request.
    cache.fetch(source(f"{server.url}/other.zip#sha256={right}"))
    with pytest.raises(SourceError, match="does not match its hash: SHA-256 is "):
        cache.fetch(source(file), locked=f"sha256:{wrong}")
    assert server.asked == []


def test_processes_can_unpack_the_same_archive_concurrently(tmp_path: Path) -> None:
    file = tar(tmp_path / "m.tar.gz", {f"m{n}.py": "x" * 2000 for n in range(200)})
    code = (
        "import sys; from pathlib import Path\n"
        "from amplifier_app.sources.fetch.archives import ArchiveCache\n"
        "from amplifier_app.plan.source_spec import parse_source\n"
        "found = ArchiveCache(Path(sys.argv[1])).fetch(parse_source(sys.argv[2], Path('/')))\n"
        "print(found.sha256, len(list(found.folder.glob('m*.py'))))\n"
    )
    arguments = (code, tmp_path / "cache", str(file))
    pipe = subprocess.PIPE
    running = [start_python(*arguments, stdout=pipe, text=True) for _ in range(4)]
    answers = {process.communicate()[0].strip() for process in running}
    assert answers == {f"sha256:{sha256(file)} 200"}
    names = sorted(path.name for path in (tmp_path / "cache").iterdir())
    assert names == [sha256(file), f"{sha256(file)}.lock"]


def test_an_unreadable_file_is_reported(tmp_path: Path, cache: ArchiveCache) -> None:
    os.mkfifo(tmp_path / "pipe.zip")
    (tmp_path / "folder.zip").mkdir()
    for name in ("gone.zip", "pipe.zip", "folder.zip"):
        with pytest.raises(SourceError, match="does not exist"):
            cache.fetch(source(tmp_path / name))


async def test_unpacking_can_be_cancelled(tmp_path: Path, cache: ArchiveCache) -> None:
    file = zipped(tmp_path / "m.zip", {"a.py": "1"})
    begun, cancelled, ended = threading.Event(), threading.Event(), threading.Event()

    def work() -> None:
        begun.set()
        cancelled.wait(60)
        with pytest.raises(Stopped):
            cache.fetch(source(file))
        ended.set()

    task = asyncio.create_task(run_in_thread(work))
    await asyncio.to_thread(begun.wait, 60)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    cancelled.set()
    assert await asyncio.to_thread(ended.wait, 60)


# -- by URL ------------------------------------------------------------------------------


def fetch(cache: ArchiveCache, server: Server, path: str = "/m.zip") -> Unpacked:
    return cache.fetch(source(f"{server.url}{path}"))


async def test_a_module_at_a_url_is_mounted(tmp_path: Path, server: Server) -> None:
    body = zipped(tmp_path / "m.zip", SEED_TOOL).read_bytes()
    server.answers["/m.zip"] = (200, {}, body)
    assert await greeting(f"{server.url}/m.zip") == "Hello, world!"


def test_an_unchanged_archive_is_not_downloaded_again(
    tmp_path: Path, cache: ArchiveCache, server: Server
) -> None:
    old = zipped(tmp_path / "m.zip", {"a.py": "1"}).read_bytes()
    server.answers["/m.zip"] = (200, {"ETag": '"1"'}, old)
    first = fetch(cache, server)
    assert fetch(cache, server) == first
    assert server.asked[-1][1]["If-None-Match"] == '"1"'
    new = zipped(tmp_path / "m.zip", {"a.py": "2"}).read_bytes()
    server.answers["/m.zip"] = (200, {"ETag": '"2"'}, new)
    assert (fetch(cache, server).folder / "a.py").read_text() == "2"


def test_offline_uses_the_last_download(
    tmp_path: Path, cache: ArchiveCache, server: Server
) -> None:
    offline = ArchiveCache(tmp_path / "cache", offline=True)
    with pytest.raises(SourceError, match="is not in the cache and cannot be downloaded offline"):
        fetch(offline, server)
    server.answers["/m.zip"] = (200, {}, zipped(tmp_path / "m.zip", {"a.py": "1"}).read_bytes())
    first = fetch(cache, server)
    server.asked.clear()
    assert fetch(offline, server) == first
    assert server.asked == []
    assert offline.fetch(source(tmp_path / "m.zip")).sha256 == first.sha256


def test_allowed_redirects_are_followed(
    tmp_path: Path, cache: ArchiveCache, server: Server
) -> None:
    body = zipped(tmp_path / "m.zip", {"a.py": "1"}).read_bytes()
    server.answers["/real"] = (200, {}, body)
    server.answers["/m.zip"] = (302, {"Location": "/real"}, b"")
    assert (fetch(cache, server).folder / "a.py").read_text() == "1"
    for target in ("http://192.0.2.1/x.zip", "ftp://127.0.0.1/x.zip", "file:///etc/passwd"):
        server.answers["/m.zip"] = (302, {"Location": target}, b"")
        with pytest.raises(SourceError, match="only https:// is followed"):
            fetch(cache, server)
    server.answers["/m.zip"] = (302, {"Location": "/m.zip"}, b"")
    with pytest.raises(SourceError, match="more than 5 redirects"):
        fetch(cache, server)


def test_https_redirects_only_to_https(
    tmp_path: Path, cache: ArchiveCache, server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = zipped(tmp_path / "m.zip", {"a.py": "1"}).read_bytes()
    server.answers["/m.zip"] = (200, {}, body)
    secure = Server(tls=True)
    try:
        secure.answers["/m.zip"] = (200, {}, body)
        with pytest.raises(SourceError, match="certificate verify failed"):
            fetch(cache, secure)
        monkeypatch.setenv("SSL_CERT_FILE", str(CERTIFICATE))
        assert (fetch(cache, secure).folder / "a.py").read_text() == "1"
        secure.answers["/here.zip"] = (302, {"Location": "/m.zip"}, b"")
        assert (fetch(cache, secure, "/here.zip").folder / "a.py").read_text() == "1"
        secure.answers["/down.zip"] = (302, {"Location": f"{server.url}/m.zip"}, b"")
        with pytest.raises(SourceError, match="only https:// is followed"):
            fetch(cache, secure, "/down.zip")
    finally:
        secure.close()
    assert server.asked == []


def test_a_password_is_sent_to_its_own_host_only_and_never_shown(
    tmp_path: Path, cache: ArchiveCache, server: Server
) -> None:
    other = Server()
    try:
        server.answers["/m.zip"] = (302, {"Location": f"{other.url}/x"}, b"")
        other.answers["/x"] = (403, {}, b"")
        url = server.url.replace("http://", "http://me:secret@")
        with pytest.raises(SourceError, match="the server returned 403") as raised:
            cache.fetch(source(f"{url}/m.zip"))
    finally:
        other.close()
    assert "Authorization" in server.asked[0][1]
    assert "Authorization" not in other.asked[0][1]
    assert "secret" not in str(raised.value)
    assert "me:***@" in str(raised.value)


@pytest.mark.parametrize(
    ("answer", "message"),
    [
        ((404, {}, b""), "the server returned 404 Not Found"),
        ((500, {}, b""), "the server returned 500"),
        ((200, {"Content-Length": str(201 * 1024 * 1024)}, b""), "is larger than 200 MiB"),
        ((200, {"Content-Length": "100"}, b"short"), "cannot fetch"),
        ((200, {}, b"no archive"), "m.zip is damaged"),
        ((200, {"Content-Encoding": "gzip"}, b"no gzip"), "cannot fetch"),
    ],
)
def test_server_errors_are_reported(
    answer: tuple[int, dict[str, str], bytes],
    message: str,
    cache: ArchiveCache,
    server: Server,
    tmp_path: Path,
) -> None:
    server.answers["/m.zip"] = answer
    with pytest.raises(SourceError, match=message):
        fetch(cache, server)
    assert not list((tmp_path / "cache").glob("[0-9a-f]*[0-9a-f]"))
    with pytest.raises(SourceError, match="cannot fetch"):
        cache.fetch(source("http://127.0.0.1:1/m.zip"))


def test_a_body_that_never_ends_is_cut_off(
    cache: ArchiveCache, monkeypatch: pytest.MonkeyPatch, server: Server
) -> None:
    monkeypatch.setattr(archives, "MAX_BYTES", 1024 * 1024)
    server.answers["/m.zip"] = (200, {}, os.urandom(2 * 1024 * 1024))
    with pytest.raises(SourceError, match="is larger than 1 MiB"):
        fetch(cache, server)


def test_the_hash_is_of_the_archives_bytes(
    tmp_path: Path, cache: ArchiveCache, server: Server
) -> None:
    body = zipped(tmp_path / "m.zip", {"a.py": "1"}).read_bytes()
    server.answers["/m.zip"] = (200, {}, body)
    assert fetch(cache, server).sha256 == f"sha256:{hashlib.sha256(body).hexdigest()}"
    assert server.asked[0][1]["Accept-Encoding"] == "identity"
