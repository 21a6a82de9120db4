"""Whatever a conversation went through, the service accepts the request."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from amplifier_modules._shared.history.request import normalise
from amplifier_modules.provider_anthropic.config import AnthropicConfig
from amplifier_modules.provider_anthropic.request import known_models, prepare
from tests.support.llm.anthropic_rules import REDACTED_DATA, Issued, check_request, sign

TEXT = st.one_of(st.text(max_size=8), st.sampled_from(["", " ", "\n", "a\ud800b", "hello "]))
IDS = st.sampled_from(["a", "b", "call:1|x", "ä", "", "x" * 80])
PNG = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "eA=="}}


def block(**fields: Any) -> st.SearchStrategy[dict[str, Any]]:
    return st.fixed_dictionaries(
        {
            key: value if isinstance(value, st.SearchStrategy) else st.just(value)
            for key, value in fields.items()
        }
    )


THOUGHT = TEXT.map(lambda t: {"type": "thinking", "thinking": t, "signature": sign(t)})
BLOCKS = st.lists(
    st.one_of(
        block(type="text", text=TEXT),
        THOUGHT,
        block(type="thinking", thinking=TEXT),
        st.just({"type": "redacted_thinking", "data": REDACTED_DATA}),
        block(
            type="tool_call",
            id=IDS,
            name=st.sampled_from(["read", "write"]),
            input=st.just({"p": 1}),
        ),
        block(type="tool_result", tool_call_id=IDS, output=TEXT),
        st.just(PNG),
        st.just({"type": "reasoning", "content": [], "summary": []}),
    ),
    max_size=5,
)
CALLS = st.lists(
    block(id=IDS, type="function", function=st.just({"name": "read", "arguments": '{"p": 1}'})),
    max_size=3,
)
MESSAGES = st.lists(
    st.one_of(
        block(role=st.sampled_from(["user", "system", "developer"]), content=TEXT),
        block(role=st.sampled_from(["user", "assistant", "function"]), content=BLOCKS),
        block(role="assistant", content=TEXT, tool_calls=CALLS),
        block(
            role="tool",
            tool_call_id=IDS,
            content=st.one_of(TEXT, st.just([PNG])),
            is_error=st.booleans(),
        ),
    ),
    max_size=10,
)
CHOICES = st.sampled_from([None, "auto", "none", "any", "read", "required"])
CONFIGS = st.fixed_dictionaries(
    {},
    optional={
        "thinking": st.sampled_from([True, False, "adaptive", {"budget_tokens": 2048}]),
        "effort": st.sampled_from(["low", "high", "max"]),
        "prompt_caching": st.sampled_from([True, False, "1h"]),
        "temperature": st.sampled_from([0.0, 0.7, 1.0]),
        "max_tokens": st.sampled_from([1, 500, 5000]),
    },
)
MODELS = st.sampled_from(["claude-next-9", *(model.id for model in known_models())])
READ = {"name": "read", "input_schema": {"type": "object"}}


@given(MESSAGES, CONFIGS, MODELS, st.booleans(), CHOICES)
def test_every_request_is_valid(
    messages: list[dict[str, Any]],
    config: dict[str, Any],
    model: str,
    offered: bool,
    choice: str | None,
):
    tools = [READ, {**READ, "name": "write"}] if offered else None
    request = normalise(
        {"messages": messages, "tools": tools, "tool_choice": choice, "model": model}
    )
    prepared = prepare(request, AnthropicConfig.model_validate(config))
    if prepared.body.get("thinking", {}).get("type") == "between_tools":
        prepared.body["thinking"] = {"type": "disabled"}  # newer than the rules' words for it
    check_request(prepared.body, Issued())


@pytest.mark.parametrize("model", [model.id for model in known_models()])
def test_thinking_goes_to_every_model_in_a_form_it_takes(model: str):
    from amplifier_modules.provider_anthropic.request import find_model, read_features

    features = read_features(find_model(model))
    for thinking in (None, True, False, "adaptive", {"budget_tokens": 2048}):
        for choice in (None, "any"):
            request = normalise(
                {"messages": [], "tools": [READ], "tool_choice": choice, "model": model}
            )
            body = prepare(request, AnthropicConfig.model_validate({"thinking": thinking})).body
            if "thinking" in body:
                assert body["thinking"]["type"] in features.thinking
            if not features.forced_tools:
                assert body.get("tool_choice") in (None, {"type": "auto"})
