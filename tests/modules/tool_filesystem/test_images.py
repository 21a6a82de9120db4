"""Images read from real files: valid ones are shown, others are refused with a reason."""

import base64
from typing import Any

import pytest

from amplifier_support.images import DamagedImage, image_type, read_image
from tests.support.images import IMAGES, RED_PNG, png

TYPES = {"png": "image/png", "jpg": "image/jpeg", "jpeg": "image/jpeg", "gif": "image/gif"}


@pytest.mark.parametrize("name", IMAGES)
async def test_images_are_shown(files: Any, name: str) -> None:
    ws = await files()
    (ws.folder / "picture.bin").write_bytes(IMAGES[name])
    result = await ws.call("read_file", file_path="picture.bin")
    assert result.success
    text, image = (block.model_dump(exclude_none=True) for block in result.content)
    kind = TYPES.get(name.partition(".")[2], "image/webp")
    label = {"image/webp": "WebP"}.get(kind) or kind.partition("/")[2].upper()
    note = f"[{label} image, 3x2 pixels, {len(IMAGES[name])} bytes]"
    assert result.output == text["text"] == note
    assert image["source"]["media_type"] == kind
    assert base64.b64decode(image["source"]["data"]) == IMAGES[name]
    assert ws.events[0][1]["bytes"] == len(IMAGES[name])


@pytest.mark.parametrize("name", IMAGES)
def test_truncated_images_are_refused(name: str) -> None:
    data = IMAGES[name]
    # A GIF may do without its last byte.
    for end in range(16, len(data) - name.endswith("gif")):
        assert image_type(data[:end])
        with pytest.raises(DamagedImage):
            read_image(data[:end])


def test_a_changed_byte_of_a_png_is_noticed() -> None:
    for at in range(16, len(RED_PNG)):
        changed = bytearray(RED_PNG)
        changed[at] ^= 0x10
        with pytest.raises(DamagedImage):
            read_image(bytes(changed))


async def test_a_damaged_image_is_not_shown(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.png").write_bytes(RED_PNG[:-10])
    message = await ws.error("read_file", "BinaryFile", file_path="a.png")
    assert message == "'a.png': it starts like an image, but is damaged: it ends too early"


async def test_an_oversized_image_is_refused_with_a_reason(files: Any) -> None:
    ws = await files({"max_image_bytes": 5000})
    (ws.folder / "heavy.png").write_bytes(png(10, 10, padding=5000))
    message = await ws.error("read_file", "ImageTooLarge", file_path="heavy.png")
    assert message.startswith("'heavy.png': it is a PNG image, 10x10 pixels, of 5")
    assert "the limit is 5000 bytes and 8000 pixels a side" in message
    (ws.folder / "wide.png").write_bytes(png(8001, 1))
    assert "8001x1 pixels" in await ws.error("read_file", "ImageTooLarge", file_path="wide.png")
    (ws.folder / "fits.png").write_bytes(png(8000, 1))
    assert "8000x1 pixels" in await ws.ok("read_file", file_path="fits.png")


async def test_text_that_begins_like_an_image_is_text(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.txt").write_text("GIF89a is a format of images\n")
    assert await ws.ok("read_file", file_path="a.txt") == "GIF89a is a format of images\n"


async def test_an_image_is_not_edited(files: Any) -> None:
    ws = await files()
    (ws.folder / "a.png").write_bytes(RED_PNG)
    await ws.error("edit_file", "BinaryFile", file_path="a.png", old_string="PNG", new_string="GNP")
    assert (ws.folder / "a.png").read_bytes() == RED_PNG
