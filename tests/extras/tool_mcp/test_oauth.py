"""Servers that require tokens: logging in, renewing logins, credentials of programs, and what is kept secret."""

from __future__ import annotations

import asyncio
import base64
import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
import threading
from collections.abc import AsyncGenerator, Iterator, Mapping
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from amplifier_app.base.logins import LoginStore
from amplifier_extras.tool_mcp.config import ServerConfig
from tests.extras.tool_mcp.support import session
from tests.extras.tool_mcp.test_in_a_run import environment, write_plan
from tests.support.cli import Finished, run_amplifier, start_amplifier, start_python, succeed
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.raw_http import answer, raw_server
from tests.support.results import read_text, to_exception

if TYPE_CHECKING:
    from tests.extras.tool_mcp.oauth_server import Protected

BACKEND = Path(__file__).parents[2] / "support" / "keyring_backend"
LOGIN = "amplifier mcp login far"


@pytest.fixture
def far() -> Iterator[Protected]:
    # Every worker would import the SDK, half a second, to collect the tests.
    from tests.extras.tool_mcp.oauth_server import Protected

    with Protected().running() as server:
        yield server


@pytest.fixture(autouse=True)
def no_keyring(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "keyring.backends.null.Keyring")


def mcp(*words: str, **options: Any) -> Finished:
    return run_amplifier("mcp", *words, **options)


def add(far: Any) -> None:
    """Add the server as `mcp add far` does."""
    settings = {"tools": [{"module": "tool-mcp", "config": {"servers": {"far": {"url": far.url}}}}]}
    home = Path(os.environ["AMPLIFIER_HOME"])
    home.mkdir(exist_ok=True)
    (home / "settings.yaml").write_text(json.dumps(settings))


def browse(url: str, follows: bool = True) -> httpx.Response:
    """Open a page as a browser does."""
    return httpx.get(url, follow_redirects=follows, trust_env=False)


def log_in(
    far: Protected, *words: str, env: Mapping[str, str | None] | None = None, adds: bool = True
) -> Finished:
    """Log in to the server as `far`, with a browser of another program."""
    if adds:
        add(far)
    process = start_amplifier("mcp", "login", "far", *words, env=env)
    seen = b""
    with process:
        assert process.stderr is not None
        for line in process.stderr:
            seen += line
            if line.startswith(b"http"):
                thread = threading.Thread(target=browse, args=(line.decode().strip(),))
                thread.start()
                thread.join()
        code = process.wait()
    return Finished(code, "", seen.decode(), Path())


def config(far: Protected, **settings: Any) -> dict[str, Any]:
    return {"far": {"url": far.url, **settings}}


def end_access(far: Protected) -> None:
    """End all access tokens at the server."""
    far.tokens.access.clear()


# -- logging in --------------------------------------------------------------------------


def test_a_server_is_logged_in_to_used_and_logged_out_of(far: Protected, home: Path) -> None:
    assert mcp("add", "far", "--url", far.url).code == 0
    [before] = json.loads(mcp("list", "--output", "json").stdout)
    assert before["login"] is None
    refused = mcp("test", "far", "--profile", "mock")
    assert refused.code == 3
    assert f"far: it requires a login; log in with: {LOGIN}" in refused.stderr
    assert "check its config" not in refused.stderr

    done = log_in(far, adds=False)
    assert done.code == 0, done.stderr
    assert re.search(
        r"logged in to far until .*, then renewed; stored in .*keys\.json", done.stderr
    )
    assert far.tokens.resources == [far.url]
    [after] = json.loads(mcp("list", "--output", "json").stdout)
    assert after["login"]["valid"] is True
    assert after["login"]["issuer"].rstrip("/") == far.issuer
    assert re.search("until .*, then renewed", mcp("list").stdout)
    tried = mcp("test", "far", "--profile", "mock")
    assert tried.code == 0, tried.stderr
    assert "mcp_far_hello" in tried.stdout
    for path in (home / "logins").iterdir():
        assert stat.S_IMODE(path.stat().st_mode) == 0o600

    out = mcp("logout", "far")
    assert "deleted the login for far at " in out.stderr
    assert LoginStore().facts() == []
    assert "there is no login for far" in mcp("logout", "far").stderr
    assert mcp("test", "far", "--profile", "mock").code == 3


def test_the_browser_is_opened_only_by_a_login_on_a_desktop(far: Protected, tmp_path: Path) -> None:
    browser = tmp_path / "browser.py"
    browser.write_text(
        "import sys, urllib.request\n"
        f"open({str(tmp_path / 'opened')!r}, 'a').write('opened ')\n"
        "urllib.request.urlopen(sys.argv[1]).read()\n"
    )
    command = f"{shlex.quote(sys.executable)} {shlex.quote(str(browser))} %s"
    env: dict[str, str | None] = {"BROWSER": command, "DISPLAY": ":99"}
    add(far)
    with ScriptedLLM.running(["done"]) as model:
        plan = write_plan(tmp_path, config(far))
        run = run_amplifier("run", "--plan", plan, "go", env=env | environment(model))
    assert (run.code, run.stdout) == (0, "done\n")
    assert f"MCP server far is unavailable: it requires a login; log in with: {LOGIN}" in run.stderr
    assert not (tmp_path / "opened").exists()
    assert mcp("login", "far", env=env).code == 0
    assert (tmp_path / "opened").read_text() == "opened "
    assert log_in(far, env=env | {"DISPLAY": None}, adds=False).code == 0
    assert (tmp_path / "opened").read_text() == "opened "


@pytest.mark.parametrize("ending", ["", "wrong", "empty"])
def test_without_a_browser_the_address_is_pasted(far: Protected, ending: str) -> None:
    add(far)
    process = start_amplifier("mcp", "login", "far", "--no-browser", stdin=subprocess.PIPE)
    with process:
        assert process.stderr is not None
        assert process.stdin is not None
        lines = iter(process.stderr)
        url = next(line for line in lines if line.startswith(b"http")).decode().strip()
        page = browse(url, follows=False).headers["location"]
        assert page.startswith("http://127.0.0.1:")
        page = {"": page, "wrong": page.replace("state=", "state=x"), "empty": ""}[ending]
        process.stdin.write(f"{page}\n".encode())
        process.stdin.close()
        rest = b"".join(lines).decode()
        code = process.wait()
    message = {
        "": "logged in to far",
        "wrong": "the address is not the one of this login",
        "empty": "no address was pasted",
    }[ending]
    assert code == (4 if ending else 0)
    assert message in rest


def test_a_refusal_of_the_authorization_server_is_an_error(far: Protected) -> None:
    far.tokens.refuses = "access_denied"
    done = log_in(far)
    assert done.code == 4
    assert (
        "cannot log in to the MCP server 'far': no token from its authorization server: it refused: access_denied"
        in done.stderr
    )
    assert "Traceback" not in done.stderr
    assert LoginStore().facts() == []


def test_a_second_login_uses_the_registration_of_the_first(far: Protected) -> None:
    redirects = [
        re.findall("waiting for the browser at (\\S+);", log_in(far, adds=first).stderr)
        for first in (True, False)
    ]
    assert redirects[0] == redirects[1] != []
    assert [path for path, *_ in far.requests].count("/register") == 1
    with socket.socket() as taken:
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(("127.0.0.1", int(redirects[0][0].rpartition(":")[2].partition("/")[0])))
        taken.listen()
        assert log_in(far, adds=False).code == 0
    assert [path for path, *_ in far.requests].count("/register") == 2


def test_other_requests_do_not_end_a_login(far: Protected) -> None:
    add(far)
    process = start_amplifier("mcp", "login", "far")
    with process:
        assert process.stderr is not None
        url = next(line for line in process.stderr if line.startswith(b"http")).decode().strip()
        page = browse(url, follows=False).headers["location"]
        callback = page.partition("?")[0]
        for other in (callback, f"{callback}?code=a&state=b", page.replace("/callback", "/")):
            assert browse(other).status_code == 404
        with httpx.Client(trust_env=False) as client:
            assert client.post(page).status_code == 404
        assert browse(page).status_code == 200
        assert process.wait() == 0


def test_another_authorization_server_than_the_configured_one_gets_nothing(far: Protected) -> None:
    oauth = "tools.tool-mcp.config.servers.far.oauth.issuer=https://other.example"
    done = log_in(far, "--set", oauth)
    assert done.code == 4
    assert "names the authorization server" in done.stderr
    assert [path for path, *_ in far.requests if path != "/mcp"] == []


async def test_tokens_are_not_asked_for_over_plain_http() -> None:
    async def name(request: Any, write: Any) -> None:
        if "oauth-protected-resource" in request.path:
            body = {"resource": f"{far.url}", "authorization_servers": ["http://192.0.2.1"]}
            await write(answer(200, json.dumps(body)))
        else:
            await write(answer(401, "{}"))

    async with raw_server(name) as far:
        add(far)
        done = await asyncio.to_thread(mcp, "login", "far")
    assert done.code == 4
    assert "192.0.2.1 is not an https address" in done.stderr


@pytest.mark.parametrize(
    ("server", "named", "is_refused"),
    [
        ("https://1.1.1.1/mcp", "http://localhost:8080/admin", True),
        ("https://1.1.1.1/mcp", "http://127.0.0.1/", True),
        ("https://1.1.1.1/mcp", "https://169.254.169.254/latest", True),
        ("https://1.1.1.1/mcp", "https://[::ffff:10.0.0.1]/", True),
        ("https://1.1.1.1/mcp", "https://8.8.8.8/token", False),
        ("http://127.0.0.1:9/mcp", "http://localhost:8/token", False),
        ("https://10.0.0.2/mcp", "https://10.0.0.3/token", False),
    ],
)
async def test_a_public_server_cannot_direct_requests_to_this_machine_or_its_network(
    server: str, named: str, is_refused: bool
) -> None:
    import httpx2
    from mcp.client.auth import OAuthFlowError

    from amplifier_extras.tool_mcp.oauth import Flow, Kept

    class Naming:
        """A flow that asks for the metadata which the server names."""

        context = SimpleNamespace(oauth_metadata=None)

        async def async_auth_flow(self, request: Any) -> AsyncGenerator[Any, Any]:
            yield request
            yield httpx2.Request("GET", named)

    provider: Any = Naming()
    flow = Flow(provider, Kept()).async_auth_flow(httpx2.Request("POST", server))
    assert str((await anext(flow)).url) == server
    if is_refused:
        with pytest.raises(OAuthFlowError, match="is not a public address, but the server's is"):
            await flow.asend(httpx2.Response(401))
    else:
        assert str((await flow.asend(httpx2.Response(401))).url) == named
        await flow.aclose()


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"command": "true"}, "far is a program, which needs no login"),
        (
            {"url": "https://a.example", "headers": {"authorization": "Bearer abc"}},
            "far has its token in the header Authorization",
        ),
        (
            {
                "url": "https://a.example",
                "oauth": {
                    **{"grant": "client_credentials", "client_id": "a", "client_secret": "b"},
                    "issuer": "https://b.example",
                },
            },
            "far uses the client credentials of its settings",
        ),
        (None, "there is no MCP server 'far'"),
    ],
)
def test_a_server_that_needs_no_login_is_a_usage_error(
    settings: dict[str, Any] | None, message: str, tmp_path: Path
) -> None:
    plan = write_plan(tmp_path, {"far": settings} if settings else {})
    done = mcp("login", "far", "--plan", str(plan), env={"ANTHROPIC_API_KEY": "sk-test-key"})
    assert done.code == 2
    assert message in done.stderr


@pytest.mark.parametrize(
    ("oauth", "message"),
    [
        ({"client_secret": "b"}, "require 'client_id'"),
        ({"client_id": "a", "private_key": "b"}, "requires 'grant: client_credentials'"),
        ({"client_id": "a", "grant": "client_credentials"}, "exactly one of"),
        (
            {"client_id": "a", "client_secret": "b", "grant": "client_credentials"},
            "'issuer' is required",
        ),
    ],
)
def test_incomplete_credentials_are_a_config_error(oauth: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ServerConfig.model_validate({"url": "https://a.example", "oauth": oauth})


# -- sessions ----------------------------------------------------------------------------


async def test_a_login_made_meanwhile_is_used(far: Protected) -> None:
    async with session(config(far)) as before:
        assert before.tools == []
    assert (await asyncio.to_thread(log_in, far)).code == 0
    async with session(config(far)) as after:
        assert read_text(await after.call("far_hello")) == "hello"
        error = to_exception(await after.call("far_save"))
        assert f"requires the scope 'files:write'; log in again with: {LOGIN}" in error["message"]
        scope = ("--scope", "files:write")
        assert (await asyncio.to_thread(log_in, far, *scope, adds=False)).code == 0
        assert read_text(await after.call("far_save")) == "saved"
        assert read_text(await after.call("far_hello")) == "hello"


async def test_an_ended_token_is_renewed(far: Protected) -> None:
    far.tokens.lifetime = 1
    assert (await asyncio.to_thread(log_in, far)).code == 0
    far.tokens.lifetime = 3600
    async with session(config(far)) as mcp:
        assert read_text(await mcp.call("far_hello")) == "hello"
        assert far.tokens.refreshed == 1
        # Also one that the server no longer accepts, although it should be valid.
        end_access(far)
        assert read_text(await mcp.call("far_hello")) == "hello"
        assert far.tokens.refreshed == 2
    assert [facts.is_renewable for facts in LoginStore().facts()] == [True]


async def test_a_refused_login_is_reported_with_the_command(far: Protected) -> None:
    assert (await asyncio.to_thread(log_in, far)).code == 0
    async with session(config(far)) as open_session:
        end_access(far)
        far.tokens.refresh.clear()
        error = to_exception(await open_session.call("far_hello"))
        message = f"its login has ended or was refused; log in again with: {LOGIN}"
        assert message in error["message"]
        listed = await asyncio.to_thread(mcp, "list")
        assert "ended" in listed.stdout
        assert (await asyncio.to_thread(log_in, far, adds=False)).code == 0
        assert read_text(await open_session.call("far_hello")) == "hello"


async def test_an_authorization_server_that_fails_does_not_end_the_login(far: Protected) -> None:
    assert (await asyncio.to_thread(log_in, far)).code == 0
    store = LoginStore()
    login = store.read("far", far.url)
    assert login is not None
    async with session(config(far)) as mcp:
        store.store(login._replace(token_endpoint="http://127.0.0.1:1/token"))
        end_access(far)
        error = to_exception(await mcp.call("far_hello"))
        assert "cannot renew its login" in error["message"]
        store.store(login)
        assert read_text(await mcp.call("far_hello")) == "hello"


_CALL = """
import asyncio, sys
from tests.extras.tool_mcp.support import session

async def main():
    async with session({"far": {"url": sys.argv[1]}}) as mcp:
        print("ready", flush=True)
        sys.stdin.readline()
        result = await mcp.call("far_hello")
        print(result.output or result.error, flush=True)

asyncio.run(main())
"""


def test_processes_renew_a_login_together(far: Protected) -> None:
    assert log_in(far).code == 0
    renew_in_processes(far)
    login = LoginStore().read("far", far.url)
    assert login is not None
    assert login.refresh_token in far.tokens.refresh


def renew_in_processes(far: Protected) -> None:
    """Have three processes renew the login at once, and all of them go on."""
    pipes: dict[str, Any] = dict.fromkeys(("stdin", "stdout"), subprocess.PIPE)
    processes: list[Any] = [start_python(_CALL, far.url, text=True, **pipes) for _ in range(3)]
    try:
        for process in processes:
            assert process.stdout.readline() == "ready\n"
        end_access(far)
        for process in processes:
            process.stdin.write("\n")
            process.stdin.flush()
        assert [process.stdout.readline() for process in processes] == ["hello\n"] * 3
    finally:
        for process in processes:
            process.communicate(timeout=60)
    assert far.tokens.refreshed == 1


# -- secrets -----------------------------------------------------------------------------


def test_tokens_are_in_no_file_of_a_session_and_in_no_environment(
    far: Protected, home: Path, tmp_path: Path
) -> None:
    assert log_in(far).code == 0
    login = LoginStore().read("far", far.url)
    assert login is not None
    tokens = (login.access_token, login.refresh_token or "")
    plan = write_plan(tmp_path, config(far))
    content = json.loads(plan.read_text())
    content["tools"].append({"module": "tool-bash"})
    content["hooks"] = [{"module": "hooks-logging"}]
    plan.write_text(json.dumps(content))
    calls = [ToolCall("mcp_far_reveal", {}), ToolCall("bash", {"command": "env"})]
    with ScriptedLLM.running([Reply(tool_calls=calls), "done"]) as model:
        done = run_amplifier(
            *("run", "--plan", plan, "--approve", "allow", "-v", "go"), env=environment(model)
        )
        sent = json.dumps([completion.body for completion in model.completions])
    assert done.code == 0, done.stderr
    assert "Bearer [REDACTED:secret]" in sent
    assert "AMPLIFIER_HOME" in sent
    written = [path for path in home.rglob("*") if path.is_file() and path.parent.name != "logins"]
    texts = [path.read_text(errors="replace") for path in written]
    assert len([text for text in texts if "mcp_far_reveal" in text]) > 1
    for token in tokens:
        assert all(token not in text for text in (*texts, sent, done.stdout, done.stderr))


def test_a_keyring_keeps_the_tokens_and_their_renewal_is_seen(
    far: Protected, home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    keyring = tmp_path / "keyring.json"
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "file_keyring.FileKeyring")
    monkeypatch.setenv("FILE_KEYRING", str(keyring))
    monkeypatch.setenv("PYTHONPATH", str(BACKEND))
    done = log_in(far)
    assert "stored in the keyring" in done.stderr
    [token] = far.tokens.access
    assert token in keyring.read_text()
    assert token not in (home / "logins" / "keys.json").read_text()
    asked = keyring.with_name("keyring.json.asked").read_text()
    assert re.search("until .*, then renewed", mcp("list").stdout)
    assert keyring.with_name("keyring.json.asked").read_text() == asked
    renew_in_processes(far)
    [refresh_token] = far.tokens.refresh
    assert refresh_token in keyring.read_text()
    assert mcp("logout", "far").code == 0
    assert "opaque" not in keyring.read_text()


def test_removing_a_server_deletes_its_login(far: Protected) -> None:
    assert log_in(far).code == 0
    removed = mcp("remove", "far")
    assert "deleted the login for far at " in removed.stderr
    assert LoginStore().facts() == []


def test_removing_a_plugin_deletes_the_logins_of_its_servers(
    far: Protected, tmp_path: Path
) -> None:
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    (plugin / "plugin.json").write_text('{"name": "far"}')
    servers = {"mcpServers": {"far": {"type": "streamable-http", "url": far.url}}}
    (plugin / "mcp.json").write_text(json.dumps(servers))
    succeed("plugin", "add", str(plugin), "--yes")
    assert log_in(far, adds=False).code == 0
    removed = succeed("plugin", "remove", "far", "--yes")
    assert "deleted the login for far at " in removed.stderr
    assert LoginStore().facts() == []


# -- programs ----------------------------------------------------------------------------


def credentials(far: Protected, **more: Any) -> dict[str, Any]:
    oauth = {
        "grant": "client_credentials",
        "client_id": far.client_id,
        "issuer": far.issuer,
        **more,
    }
    return config(far, oauth={"scope": "use", **oauth})


async def test_a_program_gets_tokens_with_its_secret(far: Protected) -> None:
    async with session(credentials(far, client_secret=far.secret)) as mcp:
        assert read_text(await mcp.call("far_hello")) == "hello"
        assert read_text(await mcp.call("far_reveal")) == "Bearer [REDACTED:secret]"
        end_access(far)
        assert read_text(await mcp.call("far_hello")) == "hello"
        assert read_text(await mcp.call("far_save")) == "saved"
    assert LoginStore().facts() == []


async def test_a_program_signs_with_its_key(far: Protected, tmp_path: Path) -> None:
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import rsa

    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    pem = serialization.Encoding.PEM
    far.key = (
        key.public_key().public_bytes(pem, serialization.PublicFormat.SubjectPublicKeyInfo).decode()
    )
    text = key.private_bytes(
        pem, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    file = tmp_path / "key.pem"
    file.write_text(text)
    here = {"session.working_dir": str(tmp_path)}
    for private_key in (text, str(file), "key.pem"):
        async with session(credentials(far, private_key=private_key), here) as mcp:
            assert read_text(await mcp.call("far_hello")) == "hello"


async def test_refused_credentials_are_reported_without_them(far: Protected) -> None:
    wrong = "wrong-secret-of-the-program"
    servers = credentials(far, client_secret=wrong)
    with pytest.raises(RuntimeError) as raised:
        async with session({"far": {**servers["far"], "required": True}}):
            pass
    assert "no token from its authorization server" in str(raised.value)
    assert "invalid_client" in str(raised.value)
    [(_, headers, _), *_] = [each for each in far.requests if each[0] == "/token"]
    _, _, sent = headers["authorization"].partition(" ")
    assert wrong in base64.b64decode(sent).decode()
    assert wrong not in str(raised.value)
    assert sent not in str(raised.value)


@pytest.mark.parametrize("logs_in", [True, False])
async def test_a_token_that_the_server_refuses_is_reported(far: Protected, logs_in: bool) -> None:
    far.tokens.lifetime = -60
    message = "it refuses the token from its authorization server"
    if logs_in:
        done = await asyncio.to_thread(log_in, far)
        assert (done.code, message in done.stderr) == (4, True)
        assert LoginStore().facts() == []
        return
    servers = credentials(far, client_secret=far.secret)
    with pytest.raises(RuntimeError, match=message):
        async with session({"far": {**servers["far"], "required": True}}):
            pass


async def test_credentials_go_to_their_authorization_server_only(far: Protected) -> None:
    servers = credentials(far, client_secret=far.secret, issuer="https://other.example")
    with pytest.raises(RuntimeError, match="required servers are not ready"):
        async with session({"far": {**servers["far"], "required": True}}):
            pass
    assert "/token" not in [path for path, *_ in far.requests]
