"""Files that go with a prompt."""

import base64
import json
import os
import struct
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from amplifier_app import api
from amplifier_app.base.errors import UsageError
from amplifier_app.runtime.attachments import read_attachments
from amplifier_support.images import read_image, without_metadata
from tests.support.cli import run_amplifier
from tests.support.llm_server import Request, ScriptedLLM
from tests.support.terminal import CTRL_D, ENTER, Chat


def chunk(kind: bytes, data: bytes) -> bytes:
    checksum = struct.pack(">I", zlib.crc32(data, zlib.crc32(kind)))
    return struct.pack(">I", len(data)) + kind + data + checksum


def png(width: int = 4, height: int = 3, *more: bytes) -> bytes:
    rows = b"".join(b"\0" + b"\xff\0\0" * width for _ in range(height))
    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0))
    body = chunk(b"IDAT", zlib.compress(rows))
    return b"\x89PNG\r\n\x1a\n" + head + b"".join(more) + body + chunk(b"IEND", b"")


def jpeg(*segments: bytes) -> bytes:
    frame = b"\xff\xc0" + struct.pack(">HBHHB", 11, 8, 3, 4, 1) + b"\x01\x11\x00"
    scan = b"\xff\xda" + struct.pack(">H", 8) + b"\x01\x01\x00\x00\x3f\x00" + b"\x12\x34\xff\xd9"
    return b"\xff\xd8" + b"".join(segments) + frame + scan


def segment(marker: int, data: bytes) -> bytes:
    return bytes([0xFF, marker]) + struct.pack(">H", len(data) + 2) + data


def webp(*chunks: tuple[bytes, bytes]) -> bytes:
    content = b"WEBP" + b"".join(
        kind + struct.pack("<I", len(data)) + data + b"\0" * (len(data) % 2)
        for kind, data in chunks
    )
    return b"RIFF" + struct.pack("<I", len(content)) + content


PIXELS = (b"VP8L", b"\x2f" + struct.pack("<I", 3 | 2 << 14) + b"\0\0")
EXTENDED = b"\0\0\0" + (3).to_bytes(3, "little") + (2).to_bytes(3, "little")


@pytest.mark.parametrize(
    ("image", "clean"),
    [
        (
            png(
                4, 3, chunk(b"eXIf", b"GPS"), chunk(b"tEXt", b"Author\0Me"), chunk(b"gAMA", b"1234")
            ),
            png(4, 3, chunk(b"gAMA", b"1234")),
        ),
        (
            jpeg(
                segment(0xE0, b"JFIF\0"),
                segment(0xE1, b"Exif\0GPS"),
                b"\xff" + segment(0xFE, b"me"),
            ),
            jpeg(segment(0xE0, b"JFIF\0")),
        ),
        (
            webp((b"VP8X", b"\x0c" + EXTENDED), PIXELS, (b"EXIF", b"GPS"), (b"XMP ", b"me!!")),
            webp((b"VP8X", b"\0" + EXTENDED), PIXELS),
        ),
    ],
    ids=["png", "jpeg", "webp"],
)
def test_metadata_is_removed_and_the_pixels_stay(image: bytes, clean: bytes) -> None:
    assert without_metadata(image) == clean
    assert read_image(clean) == read_image(image)
    assert (read_image(clean).width, read_image(clean).height) == (4, 3)
    assert without_metadata(clean) == clean


def test_what_cannot_be_attached_ends_before_any_request(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    cases: list[tuple[str, bytes | None, str]] = [
        ("cut.png", png()[:-20], "not an image that models take: it ends too early"),
        ("wide.png", png(9000, 1), "is too large: PNG image, 9000x1 pixels"),
        ("latin", b"caf\xe9", "neither text nor an image"),
        ("long.txt", b"x" * 200_001, "is larger than"),
        ("missing.png", None, "cannot attach missing.png: No such file"),
        ("folder", None, "cannot attach folder: "),
        ("pipe", None, "cannot attach pipe: "),
        ("binary", b"\0\1\2", "neither text nor an image"),
    ]
    for name, data, problem in cases:
        if data is not None:
            (tmp_path / name).write_bytes(data)
        with pytest.raises(UsageError, match=problem):
            read_attachments([Path(name)])
    with ScriptedLLM.running(["no"]) as server:
        done = run_amplifier("run", "--attach", "binary", "hi", cwd=tmp_path, env=server.env)
        assert server.completions == []
    assert done.code == 2
    assert "neither text nor an image" in " ".join(done.stderr.split())


def test_too_many_images_and_a_model_without_vision_are_refused(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="21 images are too many"):
        read_attachments([png()] * 21)
    (tmp_path / "a.png").write_bytes(png())
    env = {"AMPLIFIER_DEMO": "1"}
    done = run_amplifier("run", "-P", "local", "--attach", "a.png", "hi", cwd=tmp_path, env=env)
    assert (done.code, "local takes no images" in done.stderr) == (2, True), done.stderr


def images_in(request: Request) -> list[bytes]:
    found: list[bytes] = []
    for message in request.body["messages"]:
        for block in message["content"] if isinstance(message["content"], list) else ():
            if block["type"] == "image":
                found.append(base64.b64decode(block["source"]["data"]))
            elif block["type"] == "image_url":
                found.append(base64.b64decode(block["image_url"]["url"].partition(",")[2]))
    return found


@pytest.mark.parametrize("vendor", ["ANTHROPIC", "OPENAI"])
def test_images_and_texts_reach_the_model_and_stay_in_the_session(
    tmp_path: Path, vendor: str
) -> None:
    (tmp_path / "shot.png").write_bytes(png(4, 3, chunk(b"tEXt", b"Author\0Me")))
    (tmp_path / "notes.txt").write_text("remember\n")
    with ScriptedLLM.running(["Red.", "Still red.", "Red, too."]) as server:
        url = server.base_url if vendor == "ANTHROPIC" else server.openai_base_url
        env = {f"{vendor}_API_KEY": "k", f"{vendor}_BASE_URL": url}

        def run(*arguments: str) -> str:
            done = run_amplifier(*arguments, cwd=tmp_path, env=env)
            assert (done.code, server.rejections) == (0, []), done.stderr
            return done.stdout

        run("run", "--attach", "shot.png", "--attach", "notes.txt", "What?", "--session", "one")
        run("run", "--resume", "one", "And now?")
        run("run", "--fork", "one", "And there?")
        for request in server.completions:
            assert images_in(request) == [png()]
            assert "remember" in json.dumps(request.body["messages"])
        if vendor == "OPENAI":
            return
        page = run("session", "export", "one", "--html")
        encoded = base64.b64encode(png()).decode()
        assert page.count(f'src="data:image/png;base64,{encoded}"') == 1
        assert "attached: [shot.png: PNG image, 4x3 pixels]" in run("session", "show", "one")
        (listed,) = json.loads(run("session", "list", "--output", "json"))[-1:]
        assert (listed["id"], listed["title"], listed["prompts"]) == ("one", "What?", 2)


@pytest.mark.skipif(sys.platform == "win32", reason="there are no pseudo-terminals")
def test_the_chat_takes_images_by_name_dropped_and_from_the_clipboard(tmp_path: Path) -> None:
    work, programs = tmp_path / "work", tmp_path / "programs"
    work.mkdir()
    programs.mkdir()
    (work / "shot.png").write_bytes(png(4, 3))
    (tmp_path / "dropped one.png").write_bytes(png(5, 3))
    (tmp_path / "copied.png").write_bytes(png(6, 3))
    (programs / "wl-paste").write_text(f"#!/bin/sh\ncat {tmp_path}/copied.png\n")
    (programs / "wl-paste").chmod(0o755)
    with ScriptedLLM.running(["One.", "Two.", "Three.", "Four."]) as server:
        env = {
            "ANTHROPIC_API_KEY": "k",
            "ANTHROPIC_BASE_URL": server.base_url,
            "PATH": f"{programs}:{os.environ['PATH']}",
        }
        with Chat(cwd=work, env=env, size=(120, 30)) as terminal:
            terminal.ask("what is @shot.png", "added shot.png: PNG image, 4x3 pixels.*One")
            dropped = f"{tmp_path}/dropped\\ one.png "
            terminal.type(f"\x1b[200~{dropped}\x1b[201~")
            terminal.until('@"/.*dropped one.png"')
            terminal.ask("and this", "5x3 pixels.*Two")
            terminal.type("\x16")
            terminal.until("@/.*clipboard/")
            terminal.type(ENTER)
            terminal.until("6x3\\s+pixels.*Three")
            terminal.prompt()
            terminal.enter("see @gone.png", "gone.png was not added: it does not exist")
            terminal.type(CTRL_D)
        sizes = [
            [(read_image(data).width) for data in images_in(request)]
            for request in server.completions
        ]
    assert sizes == [[4], [4, 5], [4, 5, 6]]


async def test_the_library_takes_images_and_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "shot.png").write_bytes(png())
    plan = api.load_plan("mock")
    async with api.open_session(plan) as session:
        answer: Any = await session.run("hi", attach=["shot.png", png(5, 3)])
        assert answer.outcome == "ok"
        with pytest.raises(UsageError, match="image 1 is not an image"):
            await session.run("hi", attach=[b"text"])
    transcript = next(Path(os.environ["AMPLIFIER_HOME"]).rglob("transcript.jsonl")).read_text()
    assert transcript.count('"type":"image"') + transcript.count('"type": "image"') == 2
