"""`amplifier init` without a terminal: everything by options, never a question, all or nothing."""

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from amplifier_app.base.keys import KeyStore
from tests.support.cli import (
    Finished,
    run_amplifier,
    start_amplifier,
    succeed,
)
from tests.support.llm_server import ScriptedLLM, Status, closed_port

KEY = "sk-secret-0123456789abcdef"
BACKEND = Path(__file__).parents[2] / "support" / "keyring_backend"
VARIABLES = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}


@pytest.fixture
def settings(home: Path) -> Path:
    return home / "settings.yaml"


def init(*options: str, key: str | None = KEY, **more: Any) -> Finished:
    piped = ("--key-stdin",) if key is not None else ()
    done = run_amplifier(
        "init", *options, *piped, stdin=None if key is None else f"  {key}\r\n", **more
    )
    assert done.stdout == ""
    assert "Traceback" not in done.stderr
    assert KEY not in done.stderr
    return done


def everything(folder: Path) -> dict[str, Any]:
    """Every file with its mode and content."""
    return {
        str(path.relative_to(folder)): (stat.S_IMODE(path.stat().st_mode), path.read_bytes())
        for path in folder.rglob("*")
        if path.is_file()
    }


def providers(settings: Path) -> list[dict[str, Any]]:
    return yaml.safe_load(settings.read_text())["providers"]


# -- setting up ------------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "umask"), [("anthropic", 0o000), ("openai", 0o077)])
def test_a_key_from_a_pipe_is_tested_stored_and_used(
    name: str, umask: int, home: Path, settings: Path
) -> None:
    before = os.umask(umask)
    try:
        with ScriptedLLM.running(["ready", "hello"], api_key=KEY) as server:
            url = ("--base-url", server.base_url)
            done = init("--provider", name, *url, "--model", "test-model")
            assert done.code == 0, done.stderr
            assert len(server.completions) == 1
            ran = run_amplifier("run", "hi")
            assert server.completions[1].body["model"] == "test-model"
    finally:
        os.umask(before)
    assert (ran.code, ran.stdout) == (0, "hello\n"), ran.stderr
    assert f"{name} is ready" in done.stderr
    (entry,) = providers(settings)
    assert entry["module"] == f"provider-{name}"
    assert entry["config"]["model"] == "test-model"
    assert "base_url" not in entry["config"]
    assert server.base_url in str(KeyStore().names())
    files = everything(home)
    assert {path for path, (_, data) in files.items() if KEY.encode() in data} == {"keys/keys.json"}
    assert files["keys/keys.json"][0] == 0o600
    assert files["settings.yaml"][0] == 0o600
    assert stat.S_IMODE((home / "keys").stat().st_mode) == 0o700


def test_a_key_of_the_environment_is_left_there(home: Path) -> None:
    with ScriptedLLM.running(["ready"], api_key=KEY) as server:
        env = {"OPENAI_API_KEY": KEY}
        url = ("--base-url", server.base_url)
        done = init("-p", "openai", *url, "-m", "test-model", key=None, env=env)
    assert done.code == 0, done.stderr
    assert KeyStore().names() == {}
    assert all(KEY.encode() not in data for _, data in everything(home).values())


def test_variables_that_override_what_is_stored_are_warnings() -> None:
    env = {"OPENAI_API_KEY": "another", "OPENAI_BASE_URL": "http://127.0.0.1:9"}
    done = init("-p", "openai", "--base-url", "http://127.0.0.1:8", "--no-test", env=env)
    assert done.code == 0
    assert "OPENAI_API_KEY is set and takes precedence" in done.stderr
    assert "OPENAI_BASE_URL is set to another address" in done.stderr


def test_the_least_that_is_asked_writes_the_key_alone(settings: Path) -> None:
    done = init("-p", "anthropic", "--no-test")
    assert done.code == 0, done.stderr
    address = ("ANTHROPIC_BASE_URL", "https://api.anthropic.com")
    assert KeyStore().names() == {"ANTHROPIC_API_KEY": ("file", address)}
    assert not settings.exists()


def test_the_embedded_model_can_be_what_is_asked_first(settings: Path) -> None:
    env = {"ANTHROPIC_API_KEY": KEY}
    done = init("-p", "local", "--no-test", key=None, env=env)
    assert done.code == 0, done.stderr
    listed = json.loads(run_amplifier("provider", "list", "--output", "json", env=env).stdout)
    assert {row["name"]: row["in_plan"] for row in listed}["local"]
    shown = run_amplifier("plan", "show", env=env).stdout
    assert "provider-local" in shown
    assert "priority" in settings.read_text()


# -- refusals --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "status", "code"),
    [("anthropic", 401, 4), ("openai", 404, 5), ("anthropic", 429, 75)],
)
def test_a_test_that_fails_saves_nothing_and_has_its_code(
    name: str, status: int, code: int, home: Path
) -> None:
    with ScriptedLLM.running([Status(status)], repeat_last=True) as server:
        done = init("-p", name, "--base-url", server.base_url, "-m", "test-model")
        assert len(server.completions) == 1
    assert done.code == code
    assert "nothing was saved" in done.stderr
    assert "--no-test" in done.stderr
    assert everything(home) == {}


def test_a_refused_connection_saves_nothing_and_no_test_saves_anyway(
    home: Path, settings: Path
) -> None:
    with closed_port() as port:
        options = ("-p", "openai", "--base-url", f"http://127.0.0.1:{port}", "-m", "test-model")
        assert init(*options).code == 75
        assert everything(home) == {}
        assert init(*options, "--no-test").code == 0
    assert providers(settings)[0]["module"] == "provider-openai"
    assert list(KeyStore().names()) == ["OPENAI_API_KEY"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ((), "--provider"),
        (("--provider", "anthropic"), "amplifier init --provider anthropic --key-stdin"),
        (("--provider", "openai", "--base-url", "localhost:80"), "http://"),
        (("--provider", "local", "--base-url", "http://x"), "does not take an address"),
        (("--provider", "openai", "--timeout", "soon"), "90s"),
        (("--provider", "openai", "--key-in", "pocket"), "pocket"),
        (("--provider", "local", "--no-test", "--key-stdin"), "does not take a key"),
        (("--provider", "opneai", "--no-test"), "did you mean 'openai'"),
    ],
)
def test_what_cannot_be_is_a_usage_error_and_no_question(
    options: tuple[str, ...], said: str, home: Path
) -> None:
    key = KEY if "--key-stdin" in options else None
    done = init(*(one for one in options if one != "--key-stdin"), key=key, timeout=30)
    assert done.code == 2
    assert said in done.stderr
    assert everything(home) == {}


@pytest.mark.parametrize("piped", ["   \n", f"two {KEY}\n"])
def test_an_invalid_key_is_refused_and_not_printed(piped: str, home: Path) -> None:
    done = run_amplifier("init", "-p", "openai", "--no-test", "--key-stdin", stdin=piped.encode())
    assert done.code == 2
    assert "amplifier init --provider openai --key-stdin" in done.stderr
    assert KEY not in done.stderr
    assert everything(home) == {}


def test_a_pipe_that_stays_open_behind_the_key_is_not_waited_for() -> None:
    process = start_amplifier(
        "init", "-p", "openai", "--no-test", "--key-stdin", stdin=subprocess.PIPE
    )
    with process:
        assert process.stdin is not None
        process.stdin.write(KEY[:5].encode())
        process.stdin.flush()
        process.stdin.write(f"{KEY[5:]}\n".encode())
        process.stdin.flush()
        try:
            assert process.wait(30) == 0
        finally:
            process.kill()
    assert KeyStore().read("OPENAI_API_KEY") == KEY


def test_a_key_is_never_an_argument() -> None:
    done = run_amplifier("init", "-p", "openai", "--key", KEY)
    assert done.code == 2


# -- the settings ----------------------------------------------------------------------------

MINE = """\
# What I set.
profile: default   # the usual one

providers:
  # The house's server.
  - module: provider-openai
    config: {base_url: 'http://house.example/v1', model: old}   # since May
tools:
  - module: tool-bash
    config: {timeout: 5}
"""


def test_comments_and_all_else_in_the_settings_stay(settings: Path) -> None:
    settings.write_text(MINE)
    done = init("-p", "openai", "-m", "new", "--no-test")
    assert done.code == 0, done.stderr
    text = settings.read_text()
    assert text.replace("new", "old").replace(", priority: 10", "") == MINE
    assert providers(settings)[0]["config"]["base_url"] == "http://house.example/v1"


def test_doing_the_same_again_changes_nothing(settings: Path, home: Path) -> None:
    options = ("-p", "openai", "-m", "one", "--base-url", "http://127.0.0.1:9", "--no-test")
    assert init(*options).code == 0
    before = everything(home)
    again = init(*options, key=None)
    assert again.code == 0
    assert "already set up this way" in again.stderr
    assert everything(home) == before


def test_only_what_is_given_changes_and_an_empty_value_takes_away(settings: Path) -> None:
    options = ("-p", "openai", "--no-test")
    assert init(*options, "-m", "one", "--base-url", "http://127.0.0.1:9").code == 0
    assert init(*options, "-m", "two", key=None).code == 0
    (entry,) = providers(settings)
    assert entry["config"]["model"] == "two"
    assert KeyStore().names()["OPENAI_API_KEY"].address == ("OPENAI_BASE_URL", "http://127.0.0.1:9")
    # The stored key is not that of OpenAI.
    refused = init(*options, "--base-url", "", key=None)
    assert (refused.code, KeyStore().read("OPENAI_API_KEY")) == (2, KEY)
    assert "the stored OPENAI_API_KEY is for http://127.0.0.1:9" in refused.stderr
    assert "amplifier init --provider openai --base-url '' --key-stdin" in refused.stderr
    assert init(*options, "--base-url", "", key=KEY + "2").code == 0
    assert KeyStore().names()["OPENAI_API_KEY"].address == (
        "OPENAI_BASE_URL",
        "https://api.openai.com/v1",
    )


# -- the address of a key --------------------------------------------------------------------


def set_up(name: str, server: ScriptedLLM) -> None:
    done = init("-p", name, "--base-url", server.base_url, "-m", "m", "--no-test")
    assert done.code == 0, done.stderr


def write_plan(folder: Path, name: str, config: dict[str, Any]) -> Path:
    session = {"orchestrator": "loop-basic", "context": "context-simple"}
    provider = {"module": f"provider-{name}", "config": {"model": "m", **config}}
    file = folder / "plan.yaml"
    file.write_text(yaml.safe_dump({"session": session, "providers": [provider]}))
    return file


def test_a_plan_uses_the_stored_key_at_the_address_it_was_stored_for(tmp_path: Path) -> None:
    name = "anthropic"
    with ScriptedLLM.running(["hello"] * 2, api_key=KEY) as server:
        set_up(name, server)
        for config in ({}, {"api_key": f"${{{VARIABLES[name]}}}"}):
            done = run_amplifier("run", "-f", str(write_plan(tmp_path, name, config)), "hi")
            assert (done.code, done.stdout) == (0, "hello\n"), done.stderr


@pytest.mark.parametrize("name", VARIABLES)
def test_a_plan_with_another_address_gets_the_stored_key_only_if_it_names_it(
    name: str, tmp_path: Path
) -> None:
    variable = VARIABLES[name]
    with (
        ScriptedLLM.running([]) as server,
        ScriptedLLM.running(["hello"], api_key=KEY) as other,
    ):
        set_up(name, server)
        elsewhere = {"base_url": other.base_url}
        done = run_amplifier("run", "-f", str(write_plan(tmp_path, name, elsewhere)), "hi")
        assert done.code == {"anthropic": 78, "openai": 4}[name], done.stderr
        assert f"{variable} is not sent to base_url ({other.base_url})" in done.stderr
        assert f"set api_key: ${{{variable}}}" in done.stderr
        assert all(KEY not in str(request.headers) for request in other.requests)
        named = {**elsewhere, "api_key": f"${{{variable}}}"}
        done = run_amplifier("run", "-f", str(write_plan(tmp_path, name, named)), "hi")
        assert (done.code, done.stdout) == (0, "hello\n"), done.stderr
        assert server.requests == []


def test_variables_that_are_set_take_the_place_of_the_stored_key_and_address() -> None:
    name, variable = "openai", "OPENAI_API_KEY"
    with (
        ScriptedLLM.running([]) as server,
        ScriptedLLM.running(["hello"], api_key="mine", require_key=True) as other,
    ):
        set_up(name, server)
        env = {variable.replace("API_KEY", "BASE_URL"): other.base_url}
        done = run_amplifier("run", "hi", env={**env, variable: "mine"})
        assert (done.code, done.stdout) == (0, "hello\n"), done.stderr
        # The address alone: the stored key is for another one.
        done = run_amplifier("run", "hi", env=env)
        assert done.code in (4, 78)
        assert f"the stored {variable} is not used: it is for {server.base_url}" in done.stderr
        assert all(KEY not in str(request.headers) for request in other.requests)
        assert server.requests == []


def test_another_instance_has_a_key_of_its_own(settings: Path) -> None:
    settings.write_text("providers: [{module: provider-openai, instance_id: house-llm}]\n")
    done = init("-p", "house-llm", "--base-url", "http://house.example", "-m", "m", "--no-test")
    assert done.code == 0, done.stderr
    (entry,) = providers(settings)
    assert entry["config"]["api_key"] == "${HOUSE_LLM_API_KEY}"
    assert entry["config"]["base_url"] == "http://house.example"
    assert KeyStore().names() == {"HOUSE_LLM_API_KEY": ("file", None)}


def test_the_one_that_was_set_up_last_is_asked_first() -> None:
    with ScriptedLLM.running(["one", "two", "ready", "three"]) as server:
        url = ("--base-url", server.base_url, "--no-test", "-m", "m")
        for name, path in (("openai", "chat/completions"), ("anthropic", "messages")):
            assert init("-p", name, *url).code == 0
            succeed("run", "hi")
            assert server.completions[-1].path.endswith(path)
        assert init("-p", "openai", key=None).code == 0
        succeed("run", "hi")
        assert server.completions[-1].path.endswith("chat/completions")


def test_a_profile_that_leaves_providers_out_still_does() -> None:
    with ScriptedLLM.running(["from the server"]) as server:
        options = ("--base-url", server.base_url, "-m", "m", "--no-test")
        assert init("-p", "openai", *options).code == 0
        succeed("run", "--profile", "mock", "hi")
        assert server.requests == []


def test_settings_that_cannot_be_changed_stay_and_no_key_is_stored(
    settings: Path, home: Path
) -> None:
    # In the last, the entry is the same as another by an alias, so it cannot be changed alone.
    alias = "x-mine: &mine {module: provider-openai}\nproviders: [*mine]\n"
    for text in ("providers: [\n", "sessoin: {}\n", alias):
        if text == alias:
            KeyStore().store("OPENAI_API_KEY", "the-old-key")
        settings.write_text(text)
        done = init("-p", "openai", "-m", "new", "--no-test")
        assert done.code == 78
        assert "settings.yaml:" in done.stderr
        assert settings.read_text() == text
        assert list(KeyStore().names()) == (["OPENAI_API_KEY"] if text == alias else [])
        assert all(KEY.encode() not in data for _, data in everything(home).values())
    assert KeyStore().read("OPENAI_API_KEY") == "the-old-key"


def test_a_profile_without_the_provider_is_a_warning(settings: Path) -> None:
    settings.write_text("profile: mock\n")
    done = init("-p", "openai", "-m", "new", "--no-test")
    assert done.code == 0, done.stderr
    assert "another provider is used by default" in done.stderr


# -- the keyring -----------------------------------------------------------------------------


def test_the_key_goes_to_the_keyring_where_there_is_one(tmp_path: Path, home: Path) -> None:
    keyring = tmp_path / "keyring.json"
    env = {
        "PYTHON_KEYRING_BACKEND": "file_keyring.FileKeyring",
        "FILE_KEYRING": str(keyring),
        "PYTHONPATH": str(BACKEND),
    }
    done = init("-p", "openai", "--no-test", env=env)
    assert done.code == 0, done.stderr
    assert "in the keyring" in done.stderr
    assert KEY in keyring.read_text()
    assert all(KEY.encode() not in data for _, data in everything(home).values())
    moved = init("-p", "openai", "--no-test", "--key-in", "file", env=env)
    assert moved.code == 0, moved.stderr
    assert KEY not in keyring.read_text()
    assert KeyStore().read("OPENAI_API_KEY") == KEY


def test_a_keyring_that_must_be_and_is_not_stores_nothing(home: Path) -> None:
    done = init("-p", "openai", "--no-test", "--key-in", "keyring")
    assert done.code == 78
    assert "no keyring" in done.stderr
    assert KeyStore().names() == {}
    assert not (home / "settings.yaml").exists()


# -- providers of others ---------------------------------------------------------------------

HOUSE = """
__amplifier_module_type__ = "provider"


class House:
    name = "house"

    def __init__(self, config):
        self.config = config

    def get_info(self):
        from amplifier_core.models import ConfigField, ProviderInfo

        key = ConfigField(id="house_key", display_name="Key", prompt="Key", field_type="secret")
        model = ConfigField(id="default_model", display_name="Model", prompt="Model")
        return ProviderInfo(id="house", display_name="House", config_fields=[key, model])

    async def list_models(self):
        return []

    async def complete(self, request, **kwargs):
        from amplifier_core.message_models import ChatResponse, TextBlock

        text = f"{self.config['house_key'][-4:]} {self.config.get('default_model')}"
        return ChatResponse(content=[TextBlock(text=text)])

    def parse_tool_calls(self, response):
        return []


async def mount(coordinator, config=None):
    await coordinator.mount("providers", House(config or {}), name="house")
"""


def test_a_key_its_provider_looks_for_nowhere_is_handed_to_it(
    tmp_path: Path, home: Path, settings: Path
) -> None:
    from tests.support.plans import module_folder

    source = module_folder(tmp_path, HOUSE, "amplifier_module_provider_house")
    (home / "profiles").mkdir()
    (home / "profiles" / "default.yaml").write_text(
        f"extends: default\nproviders: [{{module: provider-house, source: {str(source)!r}}}]\n"
    )
    done = init("-p", "house", "-m", "big")
    assert done.code == 0, done.stderr
    (entry,) = providers(settings)
    assert entry["config"]["house_key"] == "${HOUSE_API_KEY}"
    assert entry["config"]["default_model"] == "big"
    assert KeyStore().names() == {"HOUSE_API_KEY": ("file", None)}
    ran = run_amplifier("run", "hi")
    assert (ran.code, ran.stdout) == (0, f"{KEY[-4:]} big\n"), ran.stderr
