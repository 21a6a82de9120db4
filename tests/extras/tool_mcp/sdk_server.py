"""A server made with the SDK, as its documentation describes; a program of its own.

python sdk_server.py, which speaks over stdio; `support.serve_http` serves it over HTTP.
"""

import asyncio
import os
import sys
from pathlib import Path
from typing import Any

from mcp.server.mcpserver import Audio, Context, Image, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp_types import EmbeddedResource, ResourceLink, TextContent, TextResourceContents

# Its log would show each exception with the code around it, in colours.
server = MCPServer("everything", instructions="Use it.", log_level="CRITICAL")

PIXEL = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108060000001f15c489"
    "0000000d49444154789c636060606000000005000146a2dc8b0000000049454e44ae426082"
)


@server.tool()
def add(a: int, b: int) -> int:
    """Adds two numbers."""
    return a + b


@server.tool()
def fail(why: str) -> str:
    """Fails."""
    raise ToolError(why)


@server.tool()
def echo(text: str) -> str:
    """Gives a text back."""
    return text


@server.tool()
def environment(name: str) -> str:
    """A variable of the environment."""
    return repr(os.environ.get(name))


@server.tool()
def where() -> str:
    """The working directory and the process."""
    return f"{os.getcwd()} {os.getpid()}"


@server.tool(structured_output=False)
def media() -> list[Any]:
    """Content of every kind."""
    contents = TextResourceContents(uri="memo://1", mime_type="text/plain", text="the memo")
    return [
        TextContent(type="text", text="before"),
        Image(data=PIXEL, format="png"),
        Audio(data=b"RIFFsound", format="wav"),
        EmbeddedResource(type="resource", resource=contents),
        ResourceLink(type="resource_link", uri="memo://2", name="second"),
    ]


@server.tool()
async def work(steps: int, ctx: Context) -> str:
    """Reports progress and logs."""
    for step in range(steps):
        await ctx.report_progress(step + 1, steps, f"step {step + 1}")
        await ctx.info(f"did step {step + 1}")  # pyright: ignore[reportDeprecated]
    print("noise on stderr", file=sys.stderr, flush=True)
    return "worked"


@server.tool()
async def sleep(seconds: float, note: str) -> str:
    """Takes its time, and leaves a note that it has begun."""
    Path(note).touch()
    await asyncio.sleep(seconds)
    return "slept"


@server.resource("memo://{number}")
def memo(number: str) -> str:
    """A memo."""
    return f"memo {number}"


@server.resource("file://logo", mime_type="image/png")
def logo() -> bytes:
    """The logo."""
    return PIXEL


@server.prompt()
def review(code: str, style: str = "kind") -> str:
    """Asks for a review."""
    return f"Review this in a {style} way: {code}"


if __name__ == "__main__":
    server.run("stdio")
