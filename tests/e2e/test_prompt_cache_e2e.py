"""What a request writes into a provider's cache is what the next request begins with."""

import itertools
from pathlib import Path
from typing import Any

from tests.support.cli import succeed
from tests.support.llm_server import Reply, Request, ScriptedLLM, ToolCall


def blocks_of(request: Request) -> list[tuple[bool, str]]:
    """All blocks of a request in the order of the cache, each with whether it ends a cached part."""
    body = request.body
    parts: list[Any] = [*body["tools"], *body["system"]]
    for message in body["messages"]:
        parts += [{"role": message["role"], **block} for block in message["content"]]
    return [(part.pop("cache_control", None) is not None, repr(part)) for part in parts]


def test_the_default_profile_reads_what_it_has_cached(tmp_path: Path) -> None:
    (tmp_path / "AGENTS.md").write_text("Be brief.\n")
    names = [f"{number}.txt" for number in range(5)]
    for name in names:
        (tmp_path / name).write_text(f"text of {name}\n")
    calls = [Reply(tool_calls=[ToolCall("read_file", {"path": name})]) for name in names]
    with ScriptedLLM.running([*calls, "done", "more"]) as server:
        for arguments in (("--session", "one", "read them"), ("--resume", "one", "and then?")):
            succeed("run", "--trust", *arguments, cwd=tmp_path, env=server.env)
        requests = [blocks_of(request) for request in server.completions]
    assert len(requests) == 7
    assert all("hooks-status" in request[-1][1] for request in requests)
    for before, after in itertools.pairwise(requests):
        end = max(index for index, (is_end, _) in enumerate(before) if is_end) + 1
        assert [text for _, text in before[:end]] == [text for _, text in after[:end]]
        # All but the status of the request, and what it had not seen.
        assert end == len(before) - 1
