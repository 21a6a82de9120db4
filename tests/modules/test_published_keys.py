"""Config keys of the published modules that bundled ones share their names with."""

import logging
from importlib import import_module
from typing import Any

import jsonschema
import pytest

from amplifier_core.testing import MockCoordinator
from amplifier_modules._shared.module.config import parse_config
from tests.modules.test_config_schemas import BUNDLED, mount, schema_of, validate

LOOP = {
    "max_iterations": -1,
    "default_provider": "mock",
    "extended_thinking": True,
    "reasoning_effort": "high",
    "priority": 100,
    "timeout": 300,
}
CONTEXT = {
    "max_tokens": 200_000,
    "compact_threshold": 0.92,
    "auto_compact": True,
    "target_usage": 0.5,
    "protected_recent": 0.1,
    "protected_tool_results": 5,
    "truncate_chars": 250,
    "max_messages": 100,
}
PROVIDER = {
    "api_key": "k",
    "base_url": "http://127.0.0.1:9",
    "default_model": "m",
    "max_tokens": 4096,
    "temperature": 0.7,
    "timeout": 600.0,
    "priority": 100,
    "debug": True,
    "raw_debug": True,
    "raw": True,
    "filtered": True,
    "rate_limit_state_path": "s.json",
    "throttle_delay": 1.0,
    "throttle_threshold": 0.02,
    "use_streaming": True,
    "max_retries": 5,
    "min_retry_delay": 1.0,
    "max_retry_delay": 60.0,
    "retry_jitter": True,
    "max_concurrent_requests": 5,
}
ACCEPTED: dict[str, dict[str, Any]] = {
    "loop-basic": LOOP,
    "loop-streaming": LOOP
    | {
        "use_streaming": False,
        "stream_delay": 0.1,
        "min_delay_between_calls_ms": 10,
        "goal_stall_threshold": 3,
        "goal_model_role": "fast",
        "goal_provider_preferences": [{"provider": "anthropic"}],
        "goal_busy_stall_window": 3,
        "goal_busy_stall_min_overlap": 0.5,
        "goal_max_transcript_messages": 20,
        "goal_summary_max_reasons": 3,
        "goal_tool_content_clip_chars": 500,
        "goal_transcript_char_budget": 20_000,
    },
    "loop-events": LOOP,
    "context-simple": CONTEXT
    | {
        "compaction_notice_enabled": True,
        "compaction_notice_min_level": 1,
        "compaction_notice_verbosity": "normal",
        "compaction_notice_token_reserve": 800,
        "token_meter": "actual",
        "max_tool_result_bytes": 131_072,
    },
    "context-persistent": CONTEXT
    | {"transcript_path": "t.jsonl", "memory_files": ["./AGENTS.md"], "truncate_boundary": 0.5},
    "provider-anthropic": PROVIDER
    | {
        "extended_thinking": True,
        "thinking_budget_tokens": 8000,
        "thinking_budget_buffer": 4096,
        "thinking_type": "enabled",
        "thinking_display": "omitted",
        "effort": "high",
        "reasoning_effort": "high",
        "enable_prompt_caching": True,
        "cache_stable_region_ttl_1h": True,
        "beta_headers": "context-1m-2025-08-07",
        "enable_1m_context": True,
        "overloaded_delay_multiplier": 10.0,
        "fallback_on_overload": True,
        "refusal_fallback_enabled": True,
        "fallback_state_path": "f.json",
        "fallback_cooldown_seconds": 60,
        "fallback_retry_count": 2,
        "fallback_sonnet_model": "m",
        "fallback_haiku_model": "m",
        "persist_fallback_state": True,
        "refusal_fallback_model": "m",
        "speed": "fast",
        "task_budget_tokens": 1000,
        "auth_file": "a.json",
        "enable_web_search": True,
        "web_search_max_uses": 3,
        "web_search_user_location": {"country": "CH"},
        "extra_request_params": {"a": 1},
    },
    "provider-openai": PROVIDER
    | {
        "reasoning": "low",
        "reasoning_effort": "low",
        "reasoning_summary": "detailed",
        "truncation": "auto",
        "prompt_cache_key": "k",
        "prompt_cache_retention": "24h",
        "safety_identifier": "u",
        "enable_response_chaining": "auto",
        "enable_state": True,
        "poll_interval": 5,
        "background_timeout": 1800.0,
        "enable_long_context": True,
        "thinking_budget_buffer": 4096,
    },
    "provider-local": {
        "default_model": "smollm2-135m",
        "debug": True,
        "max_tokens": 4096,
        "priority": 1,
    },
    "provider-mock": {"responses": ["one"], "debug": True, "raw_debug": True},
    "tool-bash": {
        "timeout": 30,
        "require_approval": True,
        "denied_commands": ["sudo"],
        "allowed_commands": [],
        "safety_profile": "unrestricted",
        "safety_overrides": {},
        "working_dir": ".",
        "max_concurrent": None,
        "max_output_bytes": 100_000,
    },
    "tool-filesystem": {
        "allowed_read_paths": ["."],
        "allowed_write_paths": ["."],
        "denied_write_paths": ["secrets"],
        "working_dir": ".",
    },
    "tool-search": {
        "working_dir": ".",
        "max_results": 500,
        "allowed_paths": ["."],
        "max_file_size": 1000,
        "timeout": 60,
        "exclusions": [],
        "grep": {},
        "glob": {},
    },
    "tool-web": {
        "max_results": 5,
        "timeout": 10,
        "max_size": 1_000_000,
        "default_limit": 2000,
        "extract_text": True,
        "allowed_domains": ["example.org"],
        "blocked_domains": ["localhost"],
        "search_engine": "mock",
        "api_key": "k",
    },
    "tool-task": {"max_recursion_depth": 1, "exclude_tools": ["tool-task"], "exclude_hooks": []},
    "tool-mcp": {
        "mcpServers": {},
        "max_content_size": 50_000,
        "verbose_servers": True,
        "server_log_dir": "logs",
        "visibility": {"enabled": True, "max_servers_visible": 50},
        "max_servers_visible": 50,
    },
    "hooks-approval": {
        "rules": [{"pattern": "ls*", "action": "auto_approve", "description": "safe"}],
        "default_action": "deny",
        "default_timeout": 30,
        "policy_driven_only": True,
        "audit": {"enabled": True},
        "auto_approve": False,
        "patterns": [],
    },
    "hooks-redaction": {
        "rules": ["secrets", "pii-basic"],
        "allowlist": ["usage"],
        "skip_events": [],
        "priority": 10,
    },
    "hooks-logging": {
        "level": "DEBUG",
        "mode": "session-only",
        "session_log_template": "~/logs/{session_id}.jsonl",
        "file": "amplifier.log",
        "output": "file",
        "auto_discover": True,
        "additional_events": ["a:b"],
        "exclude_events": ["llm:stream_*"],
        "strip_raw": True,
        "priority": 100,
    },
    "hooks-backup": {
        "backup_dir": ".amplifier/transcripts",
        "format": "jsonl",
        "include_metadata": True,
        "compress": True,
    },
    "hooks-otel": {
        "enabled": False,
        "exporter": "otlp-http",
        "endpoint": "http://127.0.0.1:9",
        "headers": {"a": "b"},
        "file_path": "spans.jsonl",
        "service_name": "a",
        "service_version": "1",
        "user_id": "u",
        "sampling_rate": 1.0,
        "capture": {"traces": True},
        "sensitive_data": {"filter_sensitive_data": True},
        "max_attribute_length": 1000,
    },
}
REFUSED = [
    ("tool-bash", "allowed_commands", ["git *"]),
    ("tool-bash", "safety_profile", "strict"),
    ("tool-bash", "safety_overrides", {"block": ["sudo"]}),
    ("tool-bash", "max_concurrent", 1),
    ("tool-bash", "working_dir", "/srv"),
    ("tool-filesystem", "working_dir", "/srv"),
    ("tool-search", "exclusions", ["secrets"]),
    ("tool-search", "glob", {"allowed_paths": ["src"]}),
    ("hooks-approval", "patterns", ["rm -rf"]),
    ("hooks-approval", "tools", {"web_fetch": {"require_approval": True}}),
    ("hooks-otel", "sampling_rate", 0.1),
    ("provider-anthropic", "inference_geo", "us"),
]


def find_model(module_id: str) -> Any:
    """The config model of a module."""
    return import_module(BUNDLED[module_id])._module._model()


@pytest.mark.parametrize("module_id", ACCEPTED)
async def test_published_keys_pass_the_check_and_mount(
    module_id: str, caplog: pytest.LogCaptureFixture
) -> None:
    schema = schema_of(module_id)
    for key, value in ACCEPTED[module_id].items():
        config = {key: value}
        if key == "thinking_budget_tokens":
            config["thinking_type"] = "enabled"
        caplog.clear()
        validate(config, schema)
        await mount(module_id, config)

        described = schema["properties"][key]["description"]
        ignored = described.startswith("Has no effect") and bool(value)
        warned = [r.getMessage() for r in caplog.records if r.levelno == logging.WARNING]
        assert any(f"'{key}' has no effect: " in text for text in warned) is ignored, key


@pytest.mark.parametrize(("module_id", "key", "value"), REFUSED)
async def test_a_key_that_restricts_is_refused_with_the_reason(
    module_id: str, key: str, value: Any
) -> None:
    with pytest.raises(jsonschema.ValidationError):
        validate({key: value}, schema_of(module_id))
    with pytest.raises(ValueError, match=rf"{module_id}: .*'{key}' is not supported: \w+"):
        await mount(module_id, {key: value})


@pytest.mark.parametrize(
    ("module_id", "published", "own"),
    [
        (
            "provider-anthropic",
            {"extended_thinking": True, "thinking_type": "enabled", "thinking_budget_tokens": 8000},
            {"thinking": {"enabled": True, "type": "enabled", "budget_tokens": 8000}},
        ),
        ("provider-anthropic", {"enable_prompt_caching": False}, {"prompt_caching": False}),
        ("provider-anthropic", {"reasoning_effort": "low"}, {"effort": "low"}),
        ("provider-openai", {"prompt_cache_key": "k"}, {"extra_body": {"prompt_cache_key": "k"}}),
        (
            "provider-anthropic",
            {"enable_web_search": True, "web_search_max_uses": 3},
            {"web_search": {"enabled": True, "max_uses": 3}},
        ),
        ("tool-bash", {"max_output_bytes": 5000}, {"max_output": 5000}),
        ("provider-mock", {"responses": ["a"]}, {"replies": ["a"]}),
        ("context-persistent", {"transcript_path": "t"}, {"path": "t"}),
        ("hooks-logging", {"exclude_events": ["a"]}, {"events": {"exclude": ["a"]}}),
        ("hooks-logging", {"level": "WARNING"}, {"level": "warning"}),
        ("hooks-otel", {"exporter": "otlp-http"}, {"exporter": "otlp"}),
        ("hooks-approval", {"audit": {"enabled": False}}, {"audit": False}),
        (
            "hooks-approval",
            {"rules": [{"pattern": "git *", "action": "auto_deny", "description": "no"}]},
            {
                "rules": [
                    {
                        "action": "deny",
                        "tool": "bash",
                        "command": ["git *", "git * *"],
                        "reason": "no",
                    }
                ]
            },
        ),
        ("tool-web", {"max_size": 5, "default_limit": 500}, {"max_bytes": 5, "max_chars": 500}),
    ],
    ids=str,
)
def test_a_published_key_means_the_setting(
    module_id: str, published: dict[str, Any], own: dict[str, Any]
) -> None:
    model = find_model(module_id)
    assert parse_config(model, published, module_id) == parse_config(model, own, module_id)


async def test_keys_without_effect_are_reported_at_once(caplog: pytest.LogCaptureFixture) -> None:
    await mount(
        "tool-mcp", {"server_log_dir": "l", "verbose_servers": True, "visibility": {"a": 1}}
    )
    (record,) = caplog.records
    text = record.getMessage()
    assert "tool-mcp: 'server_log_dir', 'verbose_servers' have no effect: what servers log" in text
    assert "; 'visibility' has no effect: " in text


async def test_a_setting_under_two_names_is_refused() -> None:
    with pytest.raises(ValueError, match="'responses' and 'replies' are the same setting"):
        await mount("provider-mock", {"responses": ["a"], "replies": ["b"]})


async def test_denied_commands_do_not_run() -> None:
    coordinator = MockCoordinator()
    module = import_module(BUNDLED["tool-bash"])
    close = await module.mount(coordinator, {"denied_commands": ["sudo", "rm *"]})
    bash = coordinator.get("tools", "bash")
    for command, runs in [("echo a", True), ("true; SUDO x", False), ("rm x", False)]:
        assert (await bash.execute({"command": command})).success is runs, command
    await close()
