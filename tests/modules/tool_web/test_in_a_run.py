"""The tool inside the real program, asked by a model."""

import json
from pathlib import Path
from typing import Any

from tests.modules.tool_web.support import Pages, counting_server
from tests.support.cli import Finished, run_amplifier
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.raw_http import raw_server


def write_plan(folder: Path, **config: Any) -> Path:
    plan = {
        "session": {"orchestrator": "loop-streaming", "context": "context-simple"},
        "providers": [{"module": "provider-anthropic"}],
        "tools": [{"module": "tool-web", "config": config}],
        "hooks": [{"module": "hooks-logging"}],
    }
    path = folder / "plan.yaml"
    path.write_text(json.dumps(plan))
    return path


async def run(
    folder: Path, plan: Path, urls: list[str], *options: str
) -> tuple[Finished, list[Any]]:
    """How a run ended in which a model asks for these pages, and what it was given."""
    import asyncio

    calls = [ToolCall("web_fetch", {"url": url}) for url in urls]
    with ScriptedLLM.running([Reply(tool_calls=calls), "done"]) as server:
        env = {"ANTHROPIC_API_KEY": "sk-test-key", "ANTHROPIC_BASE_URL": server.base_url}
        arguments = ("run", "--plan", plan, *options, "go")
        done = await asyncio.to_thread(run_amplifier, *arguments, cwd=folder, env=env)
        assert (done.code, done.stdout) == (0, "done\n"), done.stderr
        return done, server.completions[1].body["messages"][-1]["content"]


async def test_a_model_reads_allowed_pages(tmp_path: Path) -> None:
    pages = Pages(page="<title>T</title><p>Hello <b>there</b>")
    async with raw_server(pages) as server, counting_server() as (port, connected):
        number = server.url.rpartition(":")[2]
        plan = write_plan(tmp_path, allow_hosts=[f"localhost:{number}"])
        urls = [f"http://localhost:{number}/page", f"http://127.0.0.1:{port}/"]
        done, [page, refused] = await run(tmp_path, plan, urls)
        assert "Title: T\n\nHello **there**" in page["content"]
        assert refused["is_error"]
        assert "an address of this machine" in refused["content"]
        assert connected == []
        [log] = done.home.glob("sessions/*/events.jsonl")
        events = [json.loads(line)["event"] for line in log.read_text().splitlines()]
        assert {"web:fetched", "web:refused"} <= set(events)
        # The page is kept for the next session.
        await run(tmp_path, plan, urls[:1])
        assert len(server.requests) == 1


async def test_no_request_is_made_offline(tmp_path: Path) -> None:
    async with counting_server() as (port, connected):
        plan = write_plan(tmp_path, allow_private=True)
        _, [refused] = await run(tmp_path, plan, [f"http://127.0.0.1:{port}/"], "--offline")
        assert "this session runs offline" in refused["content"]
        assert connected == []
