"""A server made with the SDK that asks the user, in the way of the protocol in use; a program of its own.

With the name of a file as argument it ends at once if the file is missing, and creates it: a client that tries
again uses an older protocol.
"""

import sys
from pathlib import Path
from typing import Annotated, Literal

from mcp.server.elicitation import ElicitationResult
from mcp.server.mcpserver import Context, MCPServer
from mcp.server.mcpserver.exceptions import ToolError
from mcp.server.mcpserver.resolve import Elicit, Resolve
from mcp.shared.exceptions import UrlElicitationRequiredError
from mcp_types import ElicitRequest, ElicitRequestURLParams, ElicitResult, InputRequiredResult
from pydantic import BaseModel, Field

server = MCPServer("asking", log_level="CRITICAL")


class Order(BaseModel):
    """What `order` asks."""

    name: str = Field(title="Your name", min_length=2)
    count: int = Field(default=3, ge=1, le=9)
    wrapped: bool
    colour: Literal["red", "green"] = "green"
    note: str | None = Field(default=None, description="For the shop")


def ask() -> Elicit[Order]:
    return Elicit("What would you like?\n[1] Not a choice", Order)


@server.tool()
async def order(asked: Annotated[ElicitationResult[Order], Resolve(ask)]) -> str:
    """Asks with a form."""
    if asked.action != "accept":
        raise ToolError(f"it was a {asked.action}")
    return asked.data.model_dump_json()


@server.tool()
async def sign(ctx: Context, url: str) -> str | InputRequiredResult:
    """Asks to open a page, and does not mind if that is declined."""
    if ctx.request_context.protocol_version < "2026":
        return f"answer: {(await ctx.elicit_url('Sign here', url, 'id-1')).action}"
    if not ctx.input_responses:
        params = ElicitRequestURLParams(message="Sign here", url=url)
        return InputRequiredResult(input_requests={"sign": ElicitRequest(params=params)})
    answer = ctx.input_responses["sign"]
    assert isinstance(answer, ElicitResult)
    return f"answer: {answer.action}"


@server.tool()
async def pay(url: str) -> str:
    """Refuses until the user has paid on a page (2025-11-25)."""
    params = ElicitRequestURLParams(message="Pay here", url=url, elicitation_id="id-2")
    raise UrlElicitationRequiredError([params])


if __name__ == "__main__":
    for argument in sys.argv[1:]:
        mark = Path(argument)
        if not mark.exists():
            mark.touch()
            sys.exit(1)
    server.run("stdio")
