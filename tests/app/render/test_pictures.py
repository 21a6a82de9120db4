"""Images in terminals with the graphics protocol of kitty."""

import base64
import re
import struct
import zlib
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.render.screen import image_protocol, picture
from tests.support.images import RED_PNG
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.terminal import CTRL_D, Terminal


def png(columns: int, rows: int) -> bytes:
    def chunk(kind: bytes, data: bytes) -> bytes:
        body = kind + data
        return struct.pack(">I", len(data)) + body + struct.pack(">I", zlib.crc32(body))

    header = struct.pack(">IIBBBBB", columns, rows, 8, 0, 0, 0, 0)
    lines = zlib.compress(b"".join(b"\0" + bytes(columns) for _ in range(rows)), 0)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", lines)


def block(data: bytes | str) -> dict[str, Any]:
    text = data if isinstance(data, str) else base64.b64encode(data).decode()
    return {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": text}}


@pytest.mark.parametrize(
    ("environment", "protocol"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "1"}, "kitty"),
        ({"TERM": "xterm-ghostty", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, ""),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "iterm"),
        ({"TERM": "tmux-256color", "TERM_PROGRAM": "iTerm.app", "TMUX": "/tmp/tmux"}, ""),
        ({"TERM": "xterm-256color"}, ""),
        ({"TERM": "tmux-256color", "KITTY_WINDOW_ID": "1", "TMUX": "/tmp/tmux"}, ""),
        ({"TERM": "screen.xterm-kitty", "KITTY_WINDOW_ID": "1"}, ""),
    ],
)
def test_only_terminals_that_draw_images_get_them(
    environment: dict[str, str], protocol: str
) -> None:
    assert image_protocol(environment) == protocol


@pytest.mark.parametrize(
    ("size", "terminal", "rows"),
    [
        ((3, 2), (80, 24), 1),
        ((400, 100), (80, 24), 5),
        ((400, 4000), (80, 24), 12),
        ((4000, 400), (44, 24), 2),
    ],
)
def test_an_image_takes_rows_as_text_does(
    size: tuple[int, int], terminal: tuple[int, int], rows: int
) -> None:
    data = png(*size)
    drawn = picture(block(data), "kitty", *terminal)
    commands = re.findall(r"\x1b_G([^;]*);([A-Za-z0-9+/=]*)\x1b\\", drawn)
    assert "".join(part for _, part in commands) == base64.b64encode(data).decode()
    assert commands[0][0].startswith(f"a=T,f=100,r={rows},C=1,q=2,m=")
    assert [keys[-1] for keys, _ in commands] == ["1"] * (len(commands) - 1) + ["0"]
    assert all(len(part) <= 4096 for _, part in commands)
    around = re.sub(r"\x1b_G.*?\x1b\\", "", drawn)
    up, down = (f"\x1b[{rows - 1}A", f"\x1b[{rows - 1}B") if rows > 1 else ("", "")
    assert around == "\n" * (rows - 1) + up + "\r" + down
    command = (
        f"\x1b7\x1b]1337;File=inline=1;height={rows}:{base64.b64encode(data).decode()}\x07\x1b8"
    )
    assert picture(block(data), "iterm", *terminal) == f"{around.removesuffix(down)}{command}{down}"


@pytest.mark.parametrize(
    "data",
    [
        "",
        "AAAA",
        "\x1b\\",
        base64.b64encode(b"GIF89a" + bytes(50)).decode(),
        png(0, 5),
        b"A" * 3_000_000,
    ],
)
def test_anything_else_draws_nothing(data: bytes | str) -> None:
    assert picture(block(data), "kitty", 80, 24) == ""


@pytest.mark.parametrize(("options", "drawn"), [((), True), (("--plain",), False)])
def test_a_chat_draws_an_image_that_a_tool_read(
    options: tuple[str, ...], drawn: bool, tmp_path: Path
) -> None:
    (tmp_path / "red.png").write_bytes(RED_PNG)
    look = Reply(tool_calls=[ToolCall("read_file", {"path": "red.png"})])
    with ScriptedLLM.running([look, "It is red."]) as server:
        env = {
            "ANTHROPIC_API_KEY": "k",
            "ANTHROPIC_BASE_URL": server.base_url,
            "TERM": "xterm-kitty",
        }
        with Terminal("run", *options, cwd=tmp_path, env=env) as terminal:
            terminal.until("Ctrl-D to leave")
            terminal.enter("look", r"It is red\.")
            terminal.type(CTRL_D)
            terminal.finish()
            data = base64.b64encode(RED_PNG).decode()
            command = f"\x1b_Ga=T,f=100,r=1,C=1,q=2,m=0;{data}\x1b\\"
            assert (command in terminal.raw) is drawn
            assert ("image/png" in terminal.shown) is drawn
