"""The plan that commands get: mount plan, origins, conditions, overrides, YAML."""

import ast
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.plan.model import ResolvedPlan, apply_overrides
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load, load_plan
from tests.app.plan.conftest import Write
from tests.support import planted

SESSION = "session: {orchestrator: loop-basic, context: context-simple}\n"
PROVIDERS = """
providers:
  - module: provider-anthropic
    when: {env: ANTHROPIC_API_KEY}
  - module: provider-openai
    when: {env: [OPENAI_API_KEY, OPENAI_BASE_URL]}
    config: {default_model: gpt}
  - module: provider-local
    when: {no_other: true}
"""


def mounted(plan: ResolvedPlan) -> list[str]:
    return [entry.get("instance_id") or entry["module"] for entry in plan.mount_plan()["providers"]]


# -- both spellings ----------------------------------------------------------------------


@pytest.mark.parametrize(
    "text",
    [
        "session:\n  orchestrator: {module: my-loop, source: ./l, config: {n: 1}}\n"
        "  context: context-simple\n",
        "session: {orchestrator: my-loop, orchestrator_source: ./l, context: context-simple}\n"
        "orchestrator: {config: {n: 1}}\n",
        "session: {context: context-simple}\n"
        "orchestrator: {module: my-loop, source: ./l, config: {n: 1}}\n",
        "orchestrator: {module: my-loop, source: ./l, config: {n: 1}}\ncontext: context-simple\n",
    ],
    ids=["mapping", "seed", "half", "top"],
)
def test_every_form_mounts_the_same_modules(text: str, write: Write, tmp_path: Path) -> None:
    write(text)
    assert load_plan("plan.yaml").mount_plan()["session"] == {
        "orchestrator": {"module": "my-loop", "source": str(tmp_path / "l"), "config": {"n": 1}},
        "context": {"module": "context-simple", "config": {}},
    }


def test_an_entry_may_be_a_bare_module_id(write: Write) -> None:
    write(SESSION + "tools: [tool-bash]\n")
    assert load_plan("plan.yaml").mount_plan()["tools"] == [{"module": "tool-bash", "config": {}}]


def test_the_mount_plan_is_valid_for_the_kernel() -> None:
    from amplifier_core.validation import MountPlanValidator

    result = MountPlanValidator().validate(load(environ={}).mount_plan())
    assert result.passed, result.format_errors()
    assert not result.warnings


def test_a_mount_plan_is_a_fresh_copy(write: Write) -> None:
    write(SESSION + "tools: [{module: a, config: {b: {c: 1}}}]\n")
    plan = load_plan("plan.yaml")
    plan.mount_plan()["tools"][0]["config"]["b"]["c"] = 2
    plan.data["tools"][0]["config"]["b"]["c"] = 2
    assert plan.mount_plan()["tools"][0]["config"] == {"b": {"c": 1}}


def test_sources_are_relative_to_their_file(write: Write, tmp_path: Path) -> None:
    write(SESSION + "tools: [{module: a, source: ./mods/a}]\n", "base/base.yaml")
    write("extends: ./base/base.yaml\ntools: [{module: b, source: ../b}]\n", "top/../plan.yaml")
    tools = load_plan("plan.yaml").mount_plan()["tools"]
    assert [tool["source"] for tool in tools] == [
        str(tmp_path / "base" / "mods" / "a"),
        str(tmp_path.parent / "b"),
    ]


def test_values_keep_the_types_of_the_safe_loader(write: Write) -> None:
    write(
        SESSION + "tools:\n  - module: a\n    config:\n"
        "      {t: on, f: no, n: ~, i: 012, x: 0x1f, e: 1.5, s: '1', d: 2024-01-02, on: 1}\n"
    )
    assert load_plan("plan.yaml").data["tools"][0]["config"] == {
        "t": True, "f": False, "n": None, "i": 10, "x": 31, "e": 1.5, "s": "1",
        "d": "2024-01-02", "on": 1,
    }  # fmt: skip


# -- origins -----------------------------------------------------------------------------


def test_every_value_has_its_location(write: Write) -> None:
    write(
        SESSION
        + "tools:\n"
        + "  - module: tool-bash\n"
        + "    config:\n"
        + "      allowed:\n"
        + "        - ls\n"
        + "        - cat\n"
    )
    plan = load_plan("plan.yaml")
    assert str(plan.origin("session.orchestrator.module")) == "plan.yaml:1:25"
    assert str(plan.origin("orchestrator.module")) == "plan.yaml:1:25"
    assert str(plan.origin("tools")) == "plan.yaml:2:1"
    assert str(plan.origin("tools.tool-bash")) == "plan.yaml:3:5"
    assert str(plan.origin("tools.0.config")) == "plan.yaml:4:5"
    assert str(plan.origin("tools.tool-bash.config.allowed.1")) == "plan.yaml:7:11"
    assert str(plan.origin(["tools", 0, "config", "allowed", 0])) == "plan.yaml:6:11"


def test_an_unknown_origin_suggests_a_known_one(write: Write) -> None:
    write(SESSION + "tools: [{module: tool-bash, config: {timeout: 1}}]\n")
    plan = load_plan("plan.yaml")
    with pytest.raises(ConfigError, match="no 'tool-bahs' in tools") as raised:
        plan.origin("tools.tool-bahs.config")
    assert raised.value.hint == "did you mean 'tool-bash'?"
    with pytest.raises(ConfigError, match=r"no 'x' in tools\.tool-bash\.config\.timeout"):
        plan.origin("tools.tool-bash.config.timeout.x")
    with pytest.raises(ConfigError, match="is not a path"):
        plan.origin("tools..x")


# -- conditions --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("environ", "names"),
    [
        ({}, ["provider-local"]),
        ({"ANTHROPIC_API_KEY": ""}, ["provider-local"]),
        ({"ANTHROPIC_API_KEY": "k"}, ["provider-anthropic"]),
        ({"OPENAI_BASE_URL": "http://x"}, ["provider-openai"]),
        (
            {"OPENAI_API_KEY": "k", "ANTHROPIC_API_KEY": "k"},
            ["provider-anthropic", "provider-openai"],
        ),
    ],
)
def test_conditions_select_providers(
    environ: dict[str, str], names: list[str], write: Write
) -> None:
    write(SESSION + PROVIDERS)
    plan = load_plan("plan.yaml", environ=environ)
    assert mounted(plan) == names
    assert plan.default_provider == names[0]
    assert all("when" not in entry for entry in plan.mount_plan()["providers"])


def test_skipped_providers_are_reported_with_a_reason(write: Write) -> None:
    write(SESSION + PROVIDERS)
    plan = load_plan("plan.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    # provider-local is a fallback.
    assert plan.notes == ["provider-openai skipped: set OPENAI_API_KEY or OPENAI_BASE_URL"]
    assert plan.dropped[0].variables == ("OPENAI_API_KEY", "OPENAI_BASE_URL")
    assert str(plan.dropped[0].at) == "plan.yaml:6:5"
    # A plan that configures what it extends may not know of the condition.
    write("extends: ./plan.yaml\nproviders:\n  - {module: provider-openai, config: {api_key: k}}\n",
          "own.yaml")  # fmt: skip
    own = load_plan("own.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    assert own.notes[0].endswith("OPENAI_BASE_URL; or add 'when: null' to its entry")


def test_the_environment_defaults_to_that_of_the_process(
    write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(SESSION + PROVIDERS)
    for name in ("ANTHROPIC_API_KEY", "OPENAI_API_KEY", "OPENAI_BASE_URL"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("OPENAI_API_KEY", "k")
    assert mounted(load_plan("plan.yaml")) == ["provider-openai"]


# -- overrides ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["local", "provider-local"])
def test_the_provider_option_overrides_the_condition(name: str, write: Write) -> None:
    write(SESSION + PROVIDERS)
    plan = load_plan("plan.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    chosen = apply_overrides(plan, provider=name)
    assert mounted(chosen) == ["provider-anthropic", "provider-local"]
    assert chosen.default_provider == "provider-local"
    assert chosen.mount_plan()["providers"][1]["config"] == {"priority": 0}
    assert mounted(plan) == ["provider-anthropic"]


def test_a_single_provider_keeps_its_config(write: Write) -> None:
    write(SESSION + PROVIDERS)
    plan = apply_overrides(load_plan("plan.yaml", environ={}), provider="anthropic")
    assert plan.mount_plan()["providers"] == [{"module": "provider-anthropic", "config": {}}]


def test_a_provider_named_comes_before_every_priority(write: Write) -> None:
    write(
        SESSION + "providers:\n"
        "  - {module: provider-a, config: {priority: -5}}\n"
        "  - {module: provider-b, instance_id: bee, config: {priority: 3}}\n"
    )
    for name in ("bee", "provider-b", "b"):
        plan = apply_overrides(load_plan("plan.yaml"), provider=name)
        assert plan.default_provider == "bee"
        assert plan.mount_plan()["providers"][1]["config"]["priority"] == -6


def test_a_provider_named_comes_before_the_orchestrators_default(write: Write) -> None:
    write(
        "session:\n"
        "  orchestrator: {module: loop-basic, config: {default_provider: slow}}\n"
        "  context: context-simple\n"
        "providers: [provider-a, {module: provider-b, instance_id: slow}]\n"
    )
    plan = load(plan="plan.yaml", model="m")
    assert plan.default_provider == "slow"
    assert plan.mount_plan()["providers"][1]["config"] == {"model": "m"}
    chosen = load(plan="plan.yaml", model="m", provider="a")
    assert chosen.default_provider == "provider-a"
    mount_plan = chosen.mount_plan()
    assert mount_plan["session"]["orchestrator"]["config"] == {"default_provider": "a"}
    assert mount_plan["providers"][0]["config"] == {"priority": 0, "model": "m"}


def test_an_unknown_provider_is_reported_with_the_known_ones(write: Write) -> None:
    write(SESSION + PROVIDERS)
    with pytest.raises(PlanError, match="no provider 'antropic'") as raised:
        load(plan="plan.yaml", provider="antropic")
    assert "did you mean 'anthropic'?" in str(raised.value)
    assert "anthropic, openai, local" in str(raised.value)


def test_a_model_goes_to_the_provider_asked_first(write: Write) -> None:
    write(SESSION + PROVIDERS)
    plan = load(plan="plan.yaml", model="m", environ={"ANTHROPIC_API_KEY": "k"})
    assert plan.mount_plan()["providers"][0]["config"] == {"model": "m"}
    assert str(plan.origin("providers.provider-anthropic.config.model")) == "--model"


def test_a_model_goes_to_the_provider_named(write: Write) -> None:
    write(SESSION + PROVIDERS)
    plan = load(plan="plan.yaml", model="m", provider="openai", environ={"ANTHROPIC_API_KEY": "k"})
    configs = {e["module"]: e["config"] for e in plan.mount_plan()["providers"]}
    assert configs == {
        "provider-anthropic": {},
        "provider-openai": {"default_model": "m", "priority": 0},
    }


def test_a_model_goes_to_the_lowest_priority_number(write: Write) -> None:
    write(
        SESSION + "providers:\n"
        "  - {module: provider-a}\n"
        "  - {module: provider-b, config: {priority: 1, model: '${B_MODEL}'}}\n"
    )
    plan = load(plan="plan.yaml", model="m", environ={})
    assert plan.mount_plan()["providers"][1]["config"] == {"priority": 1, "model": "m"}


def test_a_model_without_a_provider_is_an_error(write: Write) -> None:
    write(SESSION)
    with pytest.raises(PlanError, match="no provider to set the model of"):
        load(plan="plan.yaml", model="m")


@pytest.mark.parametrize(
    ("text", "path", "value"),
    [
        ("tools.tool-bash.config.timeout=5", "timeout", 5),
        ("tools.0.config.timeout=5.5", "timeout", 5.5),
        ("tools.tool-bash.config.deep.er=true", "deep", {"er": True}),
        ("tools.tool-bash.config.list=[a, 1]", "list", ["a", 1]),
        ("tools.tool-bash.config.map={a: {b: 1}}", "map", {"a": {"b": 1}}),
        ("tools.tool-bash.config.text='5'", "text", "5"),
        ("tools.tool-bash.config.empty=", "empty", ""),
        ("tools.tool-bash.config.eq=a=b", "eq", "a=b"),
        ("tools.tool-bash.config.url=http://h: x #y", "url", "http://h: x #y"),
        ("tools.tool-bash.config.raw=${NOT} $$", "raw", "${NOT} $$"),
        ("tools.tool-bash.config.none=null", "none", None),
    ],
)
def test_set_puts_a_value_anywhere(text: str, path: str, value: Any, write: Write) -> None:
    write(SESSION + "tools: [{module: tool-bash, config: {timeout: 1, other: 2}}]\n")
    plan = load(plan="plan.yaml", sets=[text])
    config = plan.mount_plan()["tools"][0]["config"]
    assert config[path] == value
    assert config["other"] == 2
    assert str(plan.origin(f"tools.tool-bash.config.{path}")) == f"--set {text.split('=')[0]}"


def test_later_sets_win_and_the_short_form_reaches_the_session(write: Write) -> None:
    write(SESSION)
    plan = load(plan="plan.yaml", sets=["orchestrator.config.n=1", "orchestrator.config.n=2"])
    assert plan.mount_plan()["session"]["orchestrator"]["config"] == {"n": 2}


def test_set_replaces_an_unset_variable(write: Write) -> None:
    write(SESSION + "tools: [{module: a, config: {key: '${NOT_SET}'}}]\n")
    plan = apply_overrides(load_plan("plan.yaml", environ={}), sets=["tools.a.config.key=x"])
    assert plan.mount_plan()["tools"][0]["config"] == {"key": "x"}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("tools.tool-bahs.config.a=1", "did you mean 'tool-bash'"),
        ("tools.tool-bash.config.timeout.x=1", "no 'x' in tools.tool-bash.config.timeout"),
        ("tolls=[]", "did you mean 'tools'"),
        ("tools=3", "'tools' is a number"),
        ("nothing", "is not an assignment"),
        ("=x", "is not an assignment"),
        ("a..b=x", "is not an assignment"),
        ("tools.tool-bash.config.a=[1", "not valid YAML"),
        ("session.orchestrator.module=", "is not a module id"),
    ],
)
def test_an_invalid_set_is_reported(text: str, message: str, write: Write) -> None:
    write(SESSION + "tools: [{module: tool-bash, config: {timeout: 1}}]\n")
    with pytest.raises(UsageError if message == "is not an assignment" else PlanError) as raised:
        load(plan="plan.yaml", sets=[text])
    assert message in str(raised.value)
    assert str(raised.value).startswith("--set ")


# -- YAML --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("https://u:secret@host/x?v=1", "https://[REDACTED]@host/x?v=1"),
        ("git+https://secret@host/x", "git+https://[REDACTED]@host/x"),
        ("https://host/x?v=1&token=secret#y", "https://host/x?v=1&token=[REDACTED]#y"),
        ("git+ssh://git@host/x", "git+ssh://git@host/x"),
        ("see https://host/?token=example", "see https://host/?token=example"),
    ],
)
def test_secrets_in_addresses_are_masked(write: Write, text: str, shown: str) -> None:
    write(f"{SESSION}tools: [{{module: a, config: {{address: '{text}'}}}}]\n")
    assert shown in load_plan("plan.yaml").to_yaml()


def test_tokens_are_masked_whatever_they_are_called(write: Write) -> None:
    token = planted.SECRETS["github-classic"]
    write(
        f"{SESSION}tools:\n"
        "  - module: a\n"
        "    config:\n"
        f"      args: [--verbose, {token}, --auth={token}]\n"
        f"      env: {{X: {token}, Y: '${{PLAIN}}'}}\n"
        f"      digest: sha256:{'0123456789abcdef' * 4}\n"
        f"      command: curl -H X-Key={token} https://x.example\n"
        f"instruction: Replace {token}, it is old.\n"
    )
    plan = load_plan("plan.yaml", environ={"PLAIN": token})
    import yaml

    shown = yaml.safe_load(plan.to_yaml())
    assert shown["tools"][0]["config"] == {
        "args": ["--verbose", "[REDACTED]", "[REDACTED]"],
        "env": {"X": "[REDACTED]", "Y": "${PLAIN}"},
        "digest": f"sha256:{'0123456789abcdef' * 4}",
        "command": "curl -H X-Key=[REDACTED] https://x.example",
    }
    assert shown["instruction"] == "Replace [REDACTED], it is old."


def test_the_name_of_a_variable_with_a_secret_is_not_masked(write: Write) -> None:
    write(
        f"{SESSION}tools:\n"
        "  - module: a\n"
        "    config:\n"
        "      passphrase_env: KIT_SECRETS_KEY\n"
        "      token_env_var: ['GITHUB_TOKEN']\n"
        "      api_key_env: not a name\n"
        "      secret: GITHUB_TOKEN\n"
        f"      password_env: {planted.SECRETS['aws-key']}\n"
    )
    import yaml

    shown = yaml.safe_load(load_plan("plan.yaml").to_yaml())["tools"][0]["config"]
    assert shown["passphrase_env"] == "KIT_SECRETS_KEY"
    others = ("token_env_var", "api_key_env", "secret", "password_env")
    assert [shown[key] for key in others] == ["[REDACTED]"] * 4


def test_secrets_are_masked_and_everything_else_is_not(write: Write) -> None:
    write(
        SESSION + "tools:\n"
        "  - module: a\n"
        "    source: git+https://user:pw@host/r\n"
        "    config:\n"
        "      from_env: ${MY_TOKEN}\n"
        "      header: Bearer ${MY_TOKEN:-abc}\n"
        "      api_key: literal\n"
        "      github_token: {deep: literal}\n"
        "      password: ${PLAIN}\n"
        "      url: ${PLAIN}\n"
        "      max_tokens: 5\n"
        "      price: $$5\n"
    )
    plan = load_plan("plan.yaml", environ={"MY_TOKEN": "sk-1", "PLAIN": "p"})
    text = plan.to_yaml()
    for secret in ("sk-1", "literal", "pw", "abc"):
        assert secret not in text
    import yaml

    shown = yaml.safe_load(text)["tools"][0]
    assert shown["config"] == {
        "from_env": "${MY_TOKEN}",
        "header": "${MY_TOKEN}",
        "api_key": "[REDACTED]",
        "github_token": "[REDACTED]",
        "password": "${PLAIN}",
        "url": "p",
        "max_tokens": 5,
        "price": "$$5",
    }
    open_text = plan.to_yaml(masked=False)
    assert "sk-1" in open_text
    assert "literal" in open_text


def test_written_yaml_can_be_loaded_again(write: Write) -> None:
    plan = load(environ={"OPENAI_API_KEY": "x"}, sets=["tools.tool-bash.config.prompt=$5 ${x}"])
    text = plan.to_yaml()
    assert "\ninstruction: |\n" in text
    path = write(text, "again.yaml")
    again = load(plan=path, environ={})
    assert again.mount_plan() == plan.mount_plan()
    assert again.instruction == plan.instruction


def test_written_yaml_refers_to_the_same_folders_from_anywhere(
    write: Write, tmp_path: Path
) -> None:
    write(SESSION + "tools: [{module: a, source: ./a}, {module: b, source: '${B:-../b}'}]\n")
    text = load(plan="plan.yaml", environ={}).to_yaml()
    again = load(plan=write(text, "elsewhere/again.yaml"), environ={})
    assert [tool["source"] for tool in again.mount_plan()["tools"]] == [
        str(tmp_path / "a"),
        str(tmp_path.parent / "b"),
    ]


# -- what is paid at start-up ------------------------------------------------------------


LIBRARIES = "sorted({'yaml', 'pydantic', 'jsonschema', 'difflib'} & set(sys.modules))"


def evaluate(statement: str, expression: str) -> Any:
    """The value of `expression` after `statement` in a new process."""
    code = f"import sys; {statement}; print({expression})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return ast.literal_eval(done.stdout)


def test_importing_the_package_reads_no_yaml_and_no_schema_library() -> None:
    imports = "import amplifier_app.plan; from amplifier_app.sources.loading import load"
    assert evaluate(imports, LIBRARIES) == []


def test_loading_the_default_profile_imports_no_library() -> None:
    loads = "from amplifier_app.sources.loading import load; load(environ={}).mount_plan()"
    assert evaluate(loads, LIBRARIES) == []


def test_unused_features_are_not_imported() -> None:
    loads = "from amplifier_app.sources.loading import load; load(environ={}).to_yaml()"
    plan = "{m.rpartition('.')[2] for m in sys.modules if '.plan.' in m}"
    unused = {"bundles", "edit", "explain", "includes", "json_schema", "plugins", "published"}
    assert not evaluate(loads, plan) & unused
