"""An image read by a tool reaches the model, with a real process and strict services."""

import base64
import json
from pathlib import Path
from typing import Any

import pytest

from tests.support.cli import succeed
from tests.support.images import RED_PNG
from tests.support.llm_server import Reply, ScriptedLLM, Status, ToolCall

DATA = base64.b64encode(RED_PNG).decode()
NOTE = f"[PNG image, 3x2 pixels, {len(RED_PNG)} bytes]"
LOOK, AGAIN = (Reply(tool_calls=[ToolCall("read_file", {"path": "red.png"})]) for _ in range(2))
BLIND = "[an image, which this model or service does not take]"


def anthropic(server: ScriptedLLM) -> dict[str, str | None]:
    return {"ANTHROPIC_API_KEY": "test-key", "ANTHROPIC_BASE_URL": server.base_url}


def openai(server: ScriptedLLM) -> dict[str, str | None]:
    return {"OPENAI_API_KEY": "test-key", "OPENAI_BASE_URL": server.openai_base_url}


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project"
    folder.mkdir()
    (folder / "red.png").write_bytes(RED_PNG)
    return folder


def run(server: ScriptedLLM, service: Any, project: Path, *arguments: str) -> str:
    home = project.parent / "home"
    done = succeed("run", *arguments, home=home, cwd=project, env=service(server))
    assert server.rejections == []
    return done.stdout


def test_anthropic_gets_the_image_in_the_result_even_after_resume(project: Path) -> None:
    with ScriptedLLM.running([LOOK, "It is red.", "Still red."]) as server:
        assert run(server, anthropic, project, "What colour?") == "It is red.\n"
        run(server, anthropic, project, "--continue", "And now?")
        for request in server.completions[1:]:
            (result,) = (
                block
                for turn in request.body["messages"]
                for block in turn["content"]
                if block["type"] == "tool_result"
            )
            text, image = result["content"][:2]
            assert text["text"] == NOTE
            assert image["source"] == {"type": "base64", "media_type": "image/png", "data": DATA}


@pytest.mark.parametrize(
    ("service", "status", "message"),
    [
        (anthropic, 400, "this model has no image input"),
        (openai, 500, "image input is not supported - hint: mmproj"),
    ],
)
def test_a_model_without_vision_is_informed(
    project: Path, service: Any, status: int, message: str
) -> None:
    refusal = Status(status, message=message)
    with ScriptedLLM.running([LOOK, refusal, AGAIN, "I cannot see it."]) as server:
        assert run(server, service, project, "What colour?") == "I cannot see it.\n"
        bodies = [json.dumps(request.body) for request in server.completions]
        # The rejected request, and none after it: the same image is not sent again.
        assert [DATA in body for body in bodies] == [False, True, False, False]
        assert BLIND in bodies[2]
        assert bodies[3].count(BLIND) == 2
