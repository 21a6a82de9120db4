"""Two batches with one key, against a service with a strict rate limit."""

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.support.batches import small_plan
from tests.support.cli import start_amplifier
from tests.support.llm.rate_limit import RateLimit, Style
from tests.support.llm_server import ScriptedLLM
from tests.support.thorough import Scale

KEYS: dict[str, str | None] = {"OPENAI_API_KEY": "test-key"}


@pytest.mark.parametrize(
    "style", ["openai", pytest.param("retry-after", marks=pytest.mark.thorough)]
)
@pytest.mark.timeout(300)
def test_batches_share_the_pace_of_their_key_and_lose_no_row(
    tmp_path: Path, scale: Scale, style: Style
) -> None:
    rows = scale(14, 400)
    # The same rate; a longer window counts less of what a busy machine delays.
    size, window = scale(20, 100), scale(2, 10)
    limit = RateLimit(size, window=window, style=style, left=size / 5)
    with ScriptedLLM.running([limit], repeat_last=True) as server:
        write_plan(tmp_path, server)
        lines = (json.dumps({"id": f"r{n}", "prompt": "hello"}) for n in range(rows))
        (tmp_path / "rows.jsonl").write_text("\n".join(lines))
        home = tmp_path / "home"
        running = [
            start_amplifier(
                *("batch", "run", "plan.yaml", "rows.jsonl", "-o", name, "--workers", "6"),
                cwd=tmp_path,
                env=KEYS,
                home=home,
            )
            for name in ("one", "two")
        ]
        for process in running:
            _, stderr = process.communicate(timeout=240)
            assert process.returncode == 0, stderr.decode()
    for name in ("one", "two"):
        results = [
            json.loads(line)
            for line in (tmp_path / name / "results.jsonl").read_text().splitlines()
        ]
        assert sorted(one["row"] for one in results) == sorted(f"r{n}" for n in range(rows))
        assert {one["outcome"] for one in results} == {"ok"}
    assert len(limit.arrived) - limit.refused == 2 * rows
    assert len(limit.arrived) <= 1.2 * 2 * rows
    if style == "openai":
        assert limit.refused == 0
    states = [path.read_text() for path in home.rglob("pace/*.json")]
    assert len(states) == 1
    assert json.loads(states[0])["requests"] == len(limit.arrived)


def write_plan(folder: Path, server: ScriptedLLM) -> None:
    config: dict[str, Any] = {"base_url": server.openai_base_url, "model": "m"}
    provider = {"module": "provider-openai", "config": config}
    (folder / "plan.yaml").write_text(yaml.safe_dump(small_plan(provider)))
