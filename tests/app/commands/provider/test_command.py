"""`amplifier provider` as real processes against a real server on loopback."""

import json
import os
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.keys import Address, KeyStore
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import Reply, ScriptedLLM, Stall, Status, Usage, closed_port
from tests.support.plans import mock_plan, module_folder

KEY = "sk-secret-0123456789abcdef"

DIALECTS = {
    "anthropic": ("ANTHROPIC_API_KEY", "ANTHROPIC_BASE_URL"),
    "openai": ("OPENAI_API_KEY", "OPENAI_BASE_URL"),
}


def key_and_url(dialect: str, url: str) -> dict[str, str | None]:
    key, base_url = DIALECTS[dialect]
    return {key: KEY, base_url: url}


def ask(dialect: str, server: ScriptedLLM, *options: str) -> Finished:
    done = run_amplifier(
        *("provider", "test", dialect, "--model", "test-model", *options),
        env=key_and_url(dialect, server.base_url),
    )
    assert KEY not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    return done


def rows(*options: str | Path, env: dict[str, str | None] | None = None) -> dict[str, Any]:
    done = succeed("provider", "list", "--output", "json", *options, env=env)
    assert KEY not in done.stdout + done.stderr
    return {row["name"]: row for row in json.loads(done.stdout)}


HOUSE = """
import os

from amplifier_core.models import ConfigField, ProviderInfo
from amplifier_modules.provider_mock.provider import MockConfig, MockProvider

FIELDS = [
    ConfigField(
        id="base_url", display_name="Address", prompt="Address", field_type="text", env_var="HOUSE_URL"
    )
]

class House(MockProvider):
    def get_info(self):
        info = ProviderInfo(id="house", display_name="House", credential_env_vars=["HOUSE_KEY"])
        return info.model_copy(update={"config_fields": FIELDS})

async def mount(coordinator, config=None):
    if "api_key" in (config or {}) or "HOUSE_KEY" in os.environ:
        await coordinator.mount("providers", House(MockConfig(), []), name="house")
"""


def test_modules_of_others_get_a_stored_key_for_its_address_only(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, HOUSE, "amplifier_module_provider_house"))
    for address, variable in (
        ("http://127.0.0.1:8", "HOUSE_URL"),
        ("http://127.0.0.1:8", ""),
        ("http://127.0.0.1:9/v1", "HOUSE_URL"),
    ):
        code = 0 if address.endswith("/v1") else 78
        provider = {"module": "provider-house", "source": source, "config": {"base_url": address}}
        plan = mock_plan(tmp_path, [], providers=[provider])
        KeyStore().store("HOUSE_KEY", KEY, address=Address(variable, "http://127.0.0.1:9"))
        done = run_amplifier("run", "-f", plan, "hi")
        assert done.code == code, done.stderr
        refusal = (
            f"provider-house is not given the stored HOUSE_KEY: base_url ({address}) is another"
        )
        assert (refusal in done.stderr) is (code != 0)
        if not variable:
            continue
        tested = run_amplifier("provider", "test", "-p", "house", "-f", plan)
        assert tested.code == code, tested.stderr
        assert (refusal in tested.stderr) is (code != 0)
        assert rows("-f", plan)["house"]["warning"] == (
            None
            if code == 0
            else f"HOUSE_KEY is not sent to base_url ({address}): it is for http://127.0.0.1:9; "
            "to use it there as well, set api_key: ${HOUSE_KEY} next to base_url"
        )


def test_the_list_warns_of_modules_of_others_that_may_send_a_key_elsewhere(tmp_path: Path) -> None:
    source = str(module_folder(tmp_path, HOUSE, "amplifier_module_provider_house"))
    config = {"base_url": "http://127.0.0.1:8"}
    provider = {"module": "provider-house", "source": source, "config": config}
    plan = mock_plan(tmp_path, [], providers=[provider])
    env: dict[str, str | None] = {"HOUSE_KEY": KEY, "HOUSE_URL": "http://127.0.0.1:9"}
    row = rows("-f", plan, env=env)["house"]
    assert [each["variable"] for each in row["credentials"]] == ["HOUSE_KEY"]
    assert "provider-house may send HOUSE_KEY" in row["warning"]


# -- test ------------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_one_small_request_reports_model_time_and_tokens(dialect: str) -> None:
    reply = Reply("ready", usage=Usage(11, 2))
    with ScriptedLLM.running([reply, reply]) as server:
        done = ask(dialect, server)
        as_json = ask(dialect, server, "--output", "json")
        assert len(server.completions) == 2
        body = server.completions[0].body
        assert server.rejections == []
    assert (done.code, done.stderr) == (0, "")
    assert f"{dialect} answers: test-model, " in done.stdout
    assert " ms, 11 tokens in, 2 out" in done.stdout
    assert body.get("max_tokens") == 16
    report = json.loads(as_json.stdout)
    assert report["latency_ms"] >= 0
    del report["latency_ms"]
    assert report == {
        "provider": dialect,
        "model": "test-model",
        "usage": {"input_tokens": 11, "output_tokens": 2},
        "cost_usd": None,
    }
    # Nothing is left of it.
    assert not list(Path(os.environ["AMPLIFIER_HOME"]).rglob("*"))


@pytest.mark.parametrize(
    ("dialect", "status", "code", "outcome"),
    [
        ("anthropic", 401, 4, "authentication"),
        ("openai", 400, 5, "provider"),
        ("anthropic", 429, 75, "unavailable"),
        ("openai", 500, 75, "unavailable"),
    ],
)
def test_each_refusal_has_its_code_and_is_not_retried(
    dialect: str, status: int, code: int, outcome: str
) -> None:
    failure = Status(status, headers={"retry-after": "7"} if status == 429 else {})
    with ScriptedLLM.running([failure], repeat_last=True) as server:
        done = ask(dialect, server, "--output", "json")
        assert len(server.completions) == 1
    assert done.code == code
    assert done.stderr.startswith("amplifier: ")
    assert ("Retry in 7 s" in done.stderr) == (status == 429)
    assert json.loads(done.stdout)["outcome"] == outcome


def test_a_model_unknown_to_the_service_is_an_error() -> None:
    with ScriptedLLM.running(["never"], models=["other-model"]) as server:
        done = ask("openai", server)
    assert done.code == 5
    assert "test-model" in done.stderr


def test_a_refused_connection_is_an_error() -> None:
    with closed_port() as port:
        env = key_and_url("anthropic", f"http://127.0.0.1:{port}")
        done = run_amplifier("provider", "test", "anthropic", env=env)
    assert (done.code, done.stdout) == (75, "")
    assert f"127.0.0.1:{port}" in done.stderr


def test_a_service_that_falls_silent_is_not_waited_for_longer_than_asked() -> None:
    with ScriptedLLM.running([Reply("ready", fault=Stall(after=1))]) as server:
        done = ask("openai", server, "--timeout", "1s")
    assert done.code == 75
    assert "did not answer within 1 s" in done.stderr


@pytest.mark.parametrize(
    ("name", "url", "code", "said"),
    [("openai", "ftp://x", 78, ""), ("antropic", None, 2, "did you mean 'anthropic'")],
)
def test_an_invalid_address_or_name_is_an_error(
    name: str, url: str | None, code: int, said: str
) -> None:
    done = run_amplifier("provider", "test", name, env={"OPENAI_BASE_URL": url})
    assert (done.code, done.stdout) == (code, "")
    assert said in done.stderr


def test_without_a_key_it_says_where_one_goes() -> None:
    done = run_amplifier("provider", "test", "anthropic")
    assert (done.code, done.stdout) == (78, "")
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert "amplifier init" in done.stderr
    assert done.stderr.count("no API key") == 1


def test_a_stored_key_is_used() -> None:
    variable, base_url = DIALECTS["anthropic"]
    with ScriptedLLM.running(["ready"], api_key=KEY) as server:
        KeyStore().store(variable, KEY, address=Address(base_url, server.base_url))
        env = {base_url: server.base_url}
        done = run_amplifier("provider", "test", "anthropic", "-m", "m", env=env)
    assert done.code == 0, done.stderr


def test_without_a_name_it_is_the_provider_a_run_would_ask(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ready"], mock={"model": "scripted"})
    done = succeed("provider", "test", "-f", plan)
    assert done.stdout.startswith("mock answers: scripted, ")


def test_the_first_provider_is_not_another_one_whose_short_name_is_its_key(tmp_path: Path) -> None:
    mock = {"module": "provider-mock", "instance_id": "openai", "config": {"priority": 1}}
    plan = mock_plan(tmp_path, [], providers=[{"module": "provider-openai"}, mock])
    done = succeed("provider", "models", "-f", plan, env={"OPENAI_API_KEY": KEY})
    assert "mock-model" in done.stdout


def test_the_configuration_of_the_plan_is_used(tmp_path: Path) -> None:
    with ScriptedLLM.running(["ready"], api_key="sk-from-plan") as server:
        plan = tmp_path / "plan.yaml"
        plan.write_text(
            "session: {orchestrator: loop-basic, context: context-simple}\n"
            "providers:\n"
            "  - module: provider-openai\n"
            "    instance_id: house\n"
            f"    config: {{base_url: {server.base_url!r}, api_key: sk-from-plan, model: m}}\n"
        )
        done = succeed("provider", "test", "house", "-f", plan)
        assert done.stdout.startswith("house answers: m, ")
    house = rows("-f", plan)["house"]
    assert house["module"] == "provider-openai"
    assert house["credentials"] == [{"variable": "api_key", "where": "plan"}]
    assert house["origin"] == f"{plan}:3:5"


NOISY = """
__amplifier_module_type__ = "provider"

print("noise at import")


class House:
    name = "house"

    def get_info(self):
        from amplifier_core.models import ProviderInfo

        return ProviderInfo(id="house", display_name="The \\x1b[31mHouse", defaults={"model": "h"})

    async def list_models(self):
        from amplifier_core.models import ModelInfo

        print("noise")
        return [ModelInfo(id="h\\x1b]0;x\\x07", display_name="H", context_window=1, max_output_tokens=1)]

    async def complete(self, request, **kwargs):
        from amplifier_core.message_models import ChatResponse, TextBlock

        print("noise")
        return ChatResponse(content=[TextBlock(text="ready")])

    def parse_tool_calls(self, response):
        return []


async def mount(coordinator, config=None):
    await coordinator.mount("providers", House(), name="house")
"""

BROKEN = "raise RuntimeError('broken at import')\n"


def house_plan(folder: Path, code: str) -> Path:
    source = module_folder(folder, code, "amplifier_module_provider_house")
    plan = folder / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        f"providers: [{{module: provider-house, source: {str(source)!r}}}]\n"
    )
    return plan


def test_third_party_providers_work_and_cannot_spoil_the_output(tmp_path: Path) -> None:
    plan = house_plan(tmp_path, NOISY)
    assert rows("-f", plan)["house"]["display_name"] == "The \x1b[31mHouse"
    listed = run_amplifier("provider", "list", "-f", plan)
    tested = run_amplifier("provider", "test", "-f", plan)
    models = run_amplifier("provider", "models", "house", "-f", plan)
    for done in (listed, tested, models):
        assert done.code == 0, done.stderr
        assert "noise" not in done.stdout
        assert "\x1b" not in done.stdout
    assert tested.stdout.startswith("house answers: ")
    assert models.stdout.splitlines()[1].startswith("h  ")


def test_one_provider_is_tested(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, ["ready"])
    done = run_amplifier("provider", "test", "mock", "-p", "house", "-f", plan)
    assert done.code == 2
    assert "NAME and --provider are mutually exclusive" in done.stderr


def test_a_broken_provider_fails_a_test_with_3_and_hides_no_other_in_the_list(
    tmp_path: Path,
) -> None:
    plan = house_plan(tmp_path, BROKEN)
    done = run_amplifier("provider", "test", "house", "-f", plan)
    assert (done.code, done.stdout) == (3, "")
    assert "broken at import" in done.stderr
    listed = rows("-f", plan)
    assert "broken at import" in listed["house"]["problem"]
    assert listed["anthropic"]["problem"] is None


def test_looking_at_the_list_fetches_nothing(tmp_path: Path) -> None:
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "providers:\n"
        "  - {module: provider-far, source: 'git+file:///nowhere/at/all'}\n"
    )
    listed = rows("-f", plan)
    assert listed["far"]["problem"]
    assert listed["far"]["source"] == "git+file:///nowhere/at/all"
    assert not list(Path(os.environ["AMPLIFIER_HOME"]).rglob("*far*"))


# -- list ------------------------------------------------------------------------------------


def test_the_list_shows_where_keys_come_from_and_never_the_keys() -> None:
    dialect, variable = "anthropic", "ANTHROPIC_API_KEY"
    without = rows()[dialect]
    assert without["credentials"] == []
    assert without["needs_key"]
    assert variable in without["variables"]
    assert without["left_out"]
    assert without["default_model"]

    KeyStore().store(variable, KEY)
    stored = rows()[dialect]
    assert stored["credentials"] == [{"variable": variable, "where": "file"}]
    assert stored["in_plan"]
    is_set = rows(env={variable: KEY + "2"})[dialect]
    assert is_set["credentials"] == [{"variable": variable, "where": "environment"}]
    unset = rows(env={variable: ""})[dialect]
    assert unset["credentials"] == []

    text = run_amplifier("provider", "list").stdout
    assert f"{variable} is stored in the file" in text
    assert KEY not in text


def test_the_list_shows_the_address_of_a_key_and_what_is_not_used(tmp_path: Path) -> None:
    dialect = "openai"
    variable, base_url = DIALECTS[dialect]
    KeyStore().store(variable, KEY, address=Address(base_url, "http://127.0.0.1:9"))
    row = rows()[dialect]
    assert (row["address"], row["warning"]) == ("http://127.0.0.1:9 (stored with the key)", None)
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        f"providers: [{{module: provider-{dialect}, config: {{base_url: 'http://127.0.0.1:8'}}}}]\n"
    )
    done = run_amplifier("provider", "list", "-f", str(plan))
    assert f"warning: {dialect}: {variable} is not sent to base_url" in done.stderr
    line = next(line for line in done.stdout.splitlines() if line.startswith(dialect))
    assert "http://127.0.0.1:8 (from base_url)" in line
    assert "stored" not in line
    doctor = run_amplifier("doctor", env={base_url: "http://127.0.0.1:7"})
    assert f"the stored {variable} is not used: it is for http://127.0.0.1:9" in " ".join(
        doctor.stdout.split()
    )


def test_the_list_has_the_plan_first_and_a_line_for_each(tmp_path: Path) -> None:
    done = run_amplifier("provider", "list", env={"OPENAI_BASE_URL": "http://127.0.0.1:9"})
    head, *lines = done.stdout.splitlines()
    assert head.split() == ["PROVIDER", "IN", "PLAN", "KEY", "MODEL", "FROM"]
    rows, reasons = lines[:4], lines[5:]
    assert [line.split()[0] for line in rows] == ["openai", "anthropic", "local", "mock"]
    assert rows[0].split()[1:6] == ["yes", "not", "needed;", "at", "http://127.0.0.1:9"]
    assert rows[2].split()[1:4] == ["no", "not", "needed"]
    assert lines[4] == ""
    assert reasons == [
        "anthropic skipped: ANTHROPIC_API_KEY is not set",
        "local skipped: it is used only with --provider local, or if AMPLIFIER_DEMO is set",
    ]


# -- models ----------------------------------------------------------------------------------


@pytest.mark.parametrize("dialect", DIALECTS)
def test_the_models_of_a_service_are_listed(dialect: str) -> None:
    names = ["gpt-alpha", "gpt-beta"]
    with ScriptedLLM.running([], models=names, api_key=KEY) as server:
        env = key_and_url(dialect, server.base_url)
        done = run_amplifier("provider", "models", dialect, env=env)
        as_json = run_amplifier("provider", "models", dialect, "--output", "json", env=env)
    assert (done.code, done.stderr) == (0, "")
    assert [line.split()[0] for line in done.stdout.splitlines()] == ["MODEL", *names]
    assert [model["id"] for model in json.loads(as_json.stdout)] == names


def test_a_key_that_is_refused_lists_nothing() -> None:
    with ScriptedLLM.running([], api_key="another") as server:
        env = key_and_url("anthropic", server.base_url)
        done = run_amplifier("provider", "models", "anthropic", env=env)
    assert (done.code, done.stdout) == (4, "")
    assert KEY not in done.stderr


def test_the_models_of_this_program_need_no_network() -> None:
    done = succeed("provider", "models", "local")
    assert "smollm2-135m" in done.stdout


# -- forget ----------------------------------------------------------------------------------


def test_a_stored_key_can_be_forgotten() -> None:
    store = KeyStore()
    store.store("ANTHROPIC_API_KEY", KEY)
    for name in ("openai", "provider-openai", "OPENAI_API_KEY"):
        store.store("OPENAI_API_KEY", KEY)
        done = run_amplifier("provider", "forget", name)
        assert (done.code, done.stdout) == (0, "")
        assert "OPENAI_API_KEY" in done.stderr
        assert list(store.names()) == ["ANTHROPIC_API_KEY"]
    again = run_amplifier("provider", "forget", "openai")
    assert again.code == 2
    assert "ANTHROPIC_API_KEY" in again.stderr


def test_a_key_the_keyring_does_not_reveal_is_reported(tmp_path: Path) -> None:
    folder = Path(os.environ["AMPLIFIER_HOME"]) / "keys"
    folder.mkdir(mode=0o700)
    entries = {"version": 1, "keys": {"HOUSE_KEY": {"where": "keyring"}}}
    (folder / "keys.json").write_text(json.dumps(entries))
    (folder / "keys.json").chmod(0o600)
    done = succeed("provider", "test", "-f", mock_plan(tmp_path, ["ready"]))
    assert "cannot read the key HOUSE_KEY from the keyring" in done.stderr


@pytest.mark.parametrize("command", ["test", "models"])
def test_without_a_provider_the_next_step_is_named(command: str) -> None:
    done = run_amplifier("provider", command)
    assert done.code == 78
    assert done.stderr.splitlines()[0] == "amplifier: the plan has no provider"
    assert done.stderr.splitlines()[-1] == "  Set one up: amplifier init"
