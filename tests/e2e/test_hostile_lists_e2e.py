"""Lists of models and counts of tokens that are garbage: a list of what is valid, or a clear error."""

import json
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from tests.support.cli import run_amplifier
from tests.support.llm.hostile import TRANSPORT
from tests.support.llm_server import Raw, ScriptedLLM, Status
from tests.support.thorough import Scale

_BODIES: dict[str, Any] = {
    "list": [1],
    "number": 7,
    "empty object": {},
    "data: null": {"data": None},
    "data: string": {"data": "abc"},
    "data: anything": {"data": [1, None, "x", {}, {"id": 7}, {"id": [1]}, {"id": "m"}]},
    "id: control characters": {"data": [{"id": "a\x1b[2J\r\n"}]},
    "id: surrogate": {"data": [{"id": "a\ud800"}]},
    "limits: wrong types": {
        "data": [
            {"id": "m", "max_model_len": "x", "max_tokens": -5, "meta": "x", "display_name": 5}
        ]
    },
    "limits: huge": {"data": [{"id": "m", "max_model_len": 10**30, "max_input_tokens": 1e300}]},
    "the same page for ever": {"data": [{"id": "m"}], "has_more": True, "last_id": "m"},
    "empty pages for ever": {"data": [], "has_more": True, "last_id": "m"},
    "next page: list": {"data": [{"id": "m"}], "has_more": True, "last_id": [1]},
}
LISTS: dict[str, Status | Raw] = {
    **{name: Status(200, body=body) for name, body in _BODIES.items()},
    "nested": Status(200, body='{"data":' + "[" * 50_000),
    "NaN": Status(200, body='{"data": [{"id": NaN}]}'),
    **{f"HTTP: {name}": TRANSPORT[name] for name in ("gzip bomb", "endless line", "a page")},
}
SOME = (
    *("data: anything", "limits: wrong types", "the same page for ever", "next page: list"),
    "nested",
)
_NOT_FOR_USERS = re.compile(r"Traceback|[A-Za-z]+Error[:(]|[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")


def problems(folder: Path, module: str, name: str) -> list[str]:
    folder.mkdir()
    with ScriptedLLM.running(["fine"], listing=LISTS[name]) as server:
        env = {"ANTHROPIC_API_KEY": "k", "OPENAI_API_KEY": "k"}
        env |= {"ANTHROPIC_BASE_URL": server.base_url, "OPENAI_BASE_URL": server.openai_base_url}
        plan = folder / "plan.yaml"
        config = {"max_retries": 0, "idle_timeout": 5}
        plan.write_text(
            "session: {orchestrator: loop-streaming, context: context-simple}\n"
            f"providers: [{{module: {module}, config: {json.dumps(config)}}}]\n"
        )
        command = ("provider", "models", "-f", str(plan))
        done = run_amplifier(*command, home=folder / "home", cwd=folder, env=env)
    text = done.stdout + done.stderr
    if done.code in (0, 5, 75) and not _NOT_FOR_USERS.search(text):
        return []
    return [f"{module}, {name}: exit {done.code}, {text[-1000:]!r}"]


def test_lists_of_garbage_end_in_a_list_or_a_clear_error(tmp_path: Path, scale: Scale) -> None:
    modules = ("provider-anthropic", "provider-openai")
    names = scale(SOME, tuple(LISTS))
    jobs = [(module, name) for name in names for module in scale(modules[:1], modules)]

    def play(number: int) -> list[str]:
        return problems(tmp_path / str(number), *jobs[number])

    with ThreadPoolExecutor(2) as pool:
        found = [problem for each in pool.map(play, range(len(jobs))) for problem in each]
    assert not found, "\n".join(found)
