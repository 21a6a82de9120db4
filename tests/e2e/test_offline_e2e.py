"""`run --offline` in the real program: cached sources are used without any request, and missing ones
are reported before anything is mounted."""

import functools
import json
import os
import re
import shutil
import threading
from collections.abc import Iterator
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.test_lock_e2e import GREETER, Machine, plan
from tests.support.git_http import CERTIFICATE, GitServer
from tests.support.llm_server import ScriptedLLM
from tests.support.module_repositories import SEED_TOOL, Repository, write_files
from tests.support.packages import wheel
from tests.support.plans import NOISY_TOOL, module_folder

TOOL = {name: text for name, text in SEED_TOOL.items() if name.startswith("my_tool/")}


class Index:
    """A package index over HTTP, which counts what it is asked; `/files/` has archives."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.asked: list[str] = []
        outer = self

        class Handler(SimpleHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.asked.append(self.path)
                super().do_GET()

            do_HEAD = do_GET

            def log_message(self, *_: Any) -> None:
                pass

        handler = functools.partial(Handler, directory=str(root))
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def add(self, name: str, version: str, requires: tuple[str, ...] = (), **more: Any) -> Path:
        file = wheel(self.root / "files", name, version, requires, **more)
        page = self.root / "simple" / name / "index.html"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_text(f'<!DOCTYPE html><a href="/files/{file.name}">{file.name}</a>')
        return file

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()


@pytest.fixture
def index(tmp_path: Path) -> Iterator[Index]:
    (tmp_path / "index").mkdir()
    running = Index(tmp_path / "index")
    yield running
    running.close()


@pytest.fixture
def server(tmp_path: Path) -> Iterator[GitServer]:
    (tmp_path / "remotes").mkdir()
    running = GitServer(tmp_path / "remotes")
    yield running
    running.close()


@pytest.fixture
def machine(tmp_path: Path, index: Index) -> Machine:
    """A machine whose git and index are the two servers, and whose git leaves a mark."""
    machine = Machine(tmp_path, "home")
    bin_folder = write_files(
        tmp_path / "bin",
        {"git": f'#!/bin/sh\ntouch {tmp_path}/git-ran\nexec {shutil.which("git")} "$@"\n'},
    )
    (bin_folder / "git").chmod(0o755)
    machine.env |= {
        "GIT_SSL_CAINFO": str(CERTIFICATE),
        "UV_NO_INDEX": None,
        "UV_DEFAULT_INDEX": f"{index.url}/simple",
        "PATH": f"{bin_folder}{os.pathsep}{os.environ['PATH']}",
    }
    return machine


def tools(server: GitServer, index: Index) -> list[dict[str, str]]:
    """Modules of every kind that is fetched, one of which needs a package besides."""
    code = TOOL[GREETER].replace("from typing", "import some_lib\nfrom typing")
    project = SEED_TOOL["pyproject.toml"].replace("amplifier-core>=1.6", "some-lib")
    repository = Repository(server.root / "my-tool.git")
    repository.commit({**TOOL, GREETER: code, "pyproject.toml": project})
    index.add("some-lib", "1.0")
    for name in ("tool-pack", "tool-arch"):
        package = name.replace("-", "_")
        files = {path.replace("my_tool", package): text.replace("my_tool", package).replace(
            "my-tool", name) for path, text in TOOL.items()}  # fmt: skip
        index.add(name, "1.0", files=files, modules={name: f"{package}:mount"})
    return [
        {"module": "my-tool", "source": f"git+{server.url}/my-tool.git@main"},
        {"module": "tool-pack", "source": "tool-pack>=1"},
        {
            "module": "tool-arch",
            "source": f"{index.url}/files/tool_arch-1.0-py3-none-any.whl",
        },
    ]


def test_cached_sources_are_used_without_any_request(
    machine: Machine, server: GitServer, index: Index, tmp_path: Path
) -> None:
    plan(machine.cwd, None, tools=tools(server, index))
    done = machine.run()
    assert done.code == 0, done.stderr
    assert server.requests
    assert {path.split("/")[1] for path in index.asked} == {"simple", "files"}
    server.requests.clear()
    index.asked.clear()
    (tmp_path / "git-ran").unlink()
    for offline in ((("--offline",), {}), ((), {"AMPLIFIER_OFFLINE": "1"})):
        done = machine.run(*offline[0], **offline[1])
        assert done.code == 0, done.stderr
        assert json.loads(done.stdout)["response"] == "done"
    assert (server.requests, index.asked) == ([], [])
    assert not (tmp_path / "git-ran").exists()


def test_everything_missing_is_reported_before_anything_is_mounted(
    machine: Machine, server: GitServer, index: Index, tmp_path: Path
) -> None:
    mark = tmp_path / "mounted"
    noisy = module_folder(machine.cwd, NOISY_TOOL + f"    open({str(mark)!r}, 'w').close()\n")
    needy = write_files(machine.cwd / "needy", {**SEED_TOOL, "pyproject.toml": SEED_TOOL[
        "pyproject.toml"].replace("amplifier-core>=1.6", "some-lib>=1")})  # fmt: skip
    fetched = tools(server, index)
    listed = [
        {"module": "noisy", "source": str(noisy)},
        fetched[0],
        fetched[1],
        {"module": "needy", "source": str(needy)},
    ]
    providers = [{"module": "provider-mock"}, {"module": "provider-local"}]
    agents = {"helper": {"tools": [fetched[2]]}}
    plan(machine.cwd, None, tools=listed, providers=providers, agents=agents)
    done = machine.run("--offline")
    assert (done.code, json.loads(done.stdout)["outcome"]) == (3, "module")
    url = re.escape(server.url)
    assert re.search(
        rf"^plan\.yaml:\d+:\d+: my-tool: main of {url}/my-tool\.git is not", done.stderr, re.M
    )
    for line in (
        "tool-pack: cannot install tool-pack>=1 offline: not in the cache",
        "needy/pyproject.toml offline: not in the cache",
        f"tool-arch: {index.url}/files/tool_arch-1.0-py3-none-any.whl is not in the cache",
        "provider-local: missing the weights of smollm2-135m",
        "without --offline",
        "amplifier module vendor",
    ):
        assert line in done.stderr
    assert done.stderr.count("not in the cache") == 4
    assert (server.requests, index.asked) == ([], [])
    assert not mark.exists()
    assert not (tmp_path / "git-ran").exists()
    assert not (machine.home / "sessions").exists()
    plan(machine.cwd, None, tools=listed[:1])
    assert machine.run("--offline").code == 0
    assert mark.exists()


def test_the_provider_is_contacted(machine: Machine) -> None:
    text = {
        "session": {"orchestrator": "loop-basic", "context": "context-simple"},
        "providers": [{"module": "provider-openai"}],
    }
    write_files(machine.cwd, {"plan.yaml": yaml.safe_dump(text)})
    with ScriptedLLM.running(["from the server"]) as llm:
        done = machine.run("--offline", OPENAI_BASE_URL=llm.openai_base_url, OPENAI_API_KEY="k")
    assert (done.code, json.loads(done.stdout)["response"]) == (0, "from the server"), done.stderr
