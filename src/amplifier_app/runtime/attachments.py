"""Files that go with a prompt: images as they are, text as a part of the prompt.

The images of a prompt are a message of their own, before it: the prompt of every orchestrator is text.
"""

from __future__ import annotations

import base64
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from amplifier_app.base.errors import UsageError
from amplifier_app.base.sanitize import one_line, visible
from amplifier_app.runtime import describe
from amplifier_support.files import open_regular, system_errors_as
from amplifier_support.images import (
    MAX_PIXELS,
    DamagedImage,
    image_type,
    read_image,
    without_metadata,
)
from amplifier_support.named_tuple import NamedTuple

MAX_IMAGE_BYTES = 3_750_000
"""The largest image: 5 MB, as the large services accept, once it is encoded."""
MAX_TEXT_BYTES = 200_000
MAX_IMAGES = 20
"""Images of one prompt."""


class AttachedImage(NamedTuple):
    """An image that goes with a prompt.

    Attributes:
        name: The file, as the user wrote it.
        media_type: Such as `image/png`.
        described: Such as `PNG image, 640x480 pixels`.
        data: Its bytes, without metadata.
    """

    name: str
    media_type: str
    described: str
    data: bytes


class Attachments(NamedTuple):
    """The files of a prompt.

    Attributes:
        images: The images, in order.
        texts: The text files, each as the part of the prompt that has it.
    """

    images: tuple[AttachedImage, ...] = ()
    texts: tuple[str, ...] = ()

    def add_to(self, prompt: str) -> str:
        """The prompt with the text files."""
        return "\n\n".join([prompt, *self.texts])


NONE = Attachments()


def read_attachments(files: Sequence[Path | bytes]) -> Attachments:
    """Read files, or images in memory.

    Raises:
        UsageError: One cannot be read, or is neither an image that models take nor text; or there are too
            many images.
    """
    images: list[AttachedImage] = []
    texts: list[str] = []
    for number, file in enumerate(files, 1):
        name = f"image {number}" if isinstance(file, bytes) else str(file)
        data = file if isinstance(file, bytes) else _read(file)
        if image_type(data[:16]) or isinstance(file, bytes):
            images.append(to_image(name, data))
        else:
            texts.append(_text(name, data))
    if len(images) > MAX_IMAGES:
        raise UsageError(f"{len(images)} images are too many for one prompt (limit {MAX_IMAGES})")
    return Attachments(tuple(images), tuple(texts))


def to_image(name: str, data: bytes) -> AttachedImage:
    """An image as models take it.

    Raises:
        UsageError: It is not a complete image, or too large.
    """
    label = visible(name)
    try:
        image = read_image(data)
        data = without_metadata(data)
    except (DamagedImage, IndexError) as error:
        raise UsageError(f"{label} is not an image that models take: {error}") from error
    if len(data) > MAX_IMAGE_BYTES or max(image.width, image.height) > MAX_PIXELS:
        limit = f"{describe.size(MAX_IMAGE_BYTES)} and {MAX_PIXELS:,} pixels a side"
        size = describe.size(len(data))
        raise UsageError(
            f"{label} is too large: {image.described}, {size} (limit {limit})",
            hint="Make a smaller copy and attach that.",
        )
    return AttachedImage(one_line(name, 200), image.media_type, image.described, data)


def _read(file: Path) -> bytes:
    with system_errors_as(UsageError, f"cannot attach {visible(str(file))}"):
        descriptor = open_regular(file.expanduser(), os.O_RDONLY)
        with open(descriptor, "rb") as stream:
            return stream.read(64 * 1024 * 1024)


def _text(name: str, data: bytes) -> str:
    label = visible(name)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError:
        text = "\0"
    if "\0" in text:
        raise UsageError(
            f"{label} is neither text nor an image that models take",
            hint="Images are PNG, JPEG, GIF and WebP.",
        )
    if len(data) > MAX_TEXT_BYTES:
        size, limit = describe.size(len(data)), describe.size(MAX_TEXT_BYTES)
        raise UsageError(f"{label} is larger than {limit} ({size})")
    return f'<file path="{label}">\n{text.rstrip()}\n</file>'


def as_message(images: Sequence[AttachedImage]) -> dict[str, Any]:
    """The message that has the images, for a context."""
    content: list[dict[str, Any]] = []
    for image in images:
        encoded = base64.b64encode(image.data).decode()
        source = {"type": "base64", "media_type": image.media_type, "data": encoded}
        content.append({"type": "text", "text": f"[{image.name}: {image.described}]"})
        content.append({"type": "image", "source": source})
    # Like a message that a hook adds: it is not a prompt of its own.
    metadata = {"source": "hook", "hook_name": "attachments", "persisted": True}
    return {"role": "user", "content": content, "metadata": metadata}
