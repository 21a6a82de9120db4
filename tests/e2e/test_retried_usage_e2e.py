"""What a retried call has used is the same at the service, in the budget, the result and the saved session."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.cli import run_amplifier, succeed
from tests.support.llm_server import Cut, Reply, ScriptedLLM, Usage

KEYS: dict[str, str | None] = {"ANTHROPIC_API_KEY": "test-key", "OPENAI_API_KEY": "test-key"}
COUNTED = Usage(input_tokens=1000, output_tokens=7)


@pytest.mark.parametrize(
    ("provider", "config", "lost"),
    [
        # The service counts 1000 tokens of input and 1 of output before it is cut off.
        ("anthropic", {}, (2002, 2002)),
        # It counts nothing before the end: what is known of it is an estimate.
        ("openai", {"api": "chat", "default_model": "gpt-5.4"}, (2, 40)),
        pytest.param(
            *("openai", {"api": "responses", "default_model": "gpt-5.4"}, (2, 40)),
            marks=pytest.mark.thorough,
        ),
    ],
)
def test_attempts_before_an_answer_count_everywhere(
    tmp_path: Path, provider: str, config: dict[str, Any], lost: tuple[int, int]
) -> None:
    cut = Reply("an answer", chars_per_delta=2, usage=COUNTED, fault=Cut(after=1))
    with ScriptedLLM.running([cut, cut, Reply("an answer", usage=COUNTED)]) as server:
        prices = {"input": 3, "output": 15}
        config = {"base_url": server.base_url, "max_retries": 2, "prices": prices, **config}
        plan = {
            "session": {
                "orchestrator": "loop-streaming",
                "context": "context-persistent",
                "budget": {"max_tokens": 100_000},
            },
            "providers": [{"module": f"provider-{provider}", "config": config}],
        }
        (tmp_path / "plan.yaml").write_text(yaml.safe_dump(plan))
        home = tmp_path / "home"
        line = ("run", "-f", "plan.yaml", "go", "--output", "json")
        done = succeed(*line, cwd=tmp_path, home=home, env=KEYS)
        assert len(server.completions) == 3
    result = json.loads(done.stdout)
    total = result["usage"]["total_tokens"]
    assert lost[0] <= total - 1007 <= lost[1]
    assert result["usage"].get("estimated_calls", 0) == (2 if provider == "openai" else 0)
    (file,) = home.rglob("metadata.json")
    saved = json.loads(file.read_text())
    assert saved["spent"]["tokens"] == saved["usage"]["total_tokens"] == total
    cost = float(saved["spent"]["cost_usd"])
    assert result["cost"]["usd"] == pytest.approx(cost)
    assert cost == pytest.approx((total - 1007) * 3e-6 + 1000 * 3e-6 + 7 * 15e-6, abs=5e-5)
    shown = run_amplifier("session", "show", result["session_id"], home=home, cwd=tmp_path).stdout
    assert f"{round(total / 1000)}k tokens · ${cost:.4f}" in shown
