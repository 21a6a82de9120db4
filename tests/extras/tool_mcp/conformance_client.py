"""A client for the conformance suite of the protocol, made of the parts of tool-mcp. By hand, with Node.js 22:

    npm install @modelcontextprotocol/conformance@0.2.0-alpha.12
    npx conformance client --command "python -m tests.extras.tool_mcp.conformance_client" --suite all \
        --timeout 180000 --expected-failures tests/extras/tool_mcp/conformance_failures.yaml

It logs in as `amplifier mcp login` does, with a browser that confirms everything, and again if a call needs more
scopes. Then it calls every tool, and loads every skill.
"""

import asyncio
import json
import os
import re
import sys
import tempfile
from typing import Any
from urllib.parse import urljoin, urlsplit

import httpx

from amplifier_extras.tool_mcp import login
from amplifier_extras.tool_mcp.config import ServerConfig
from tests.extras.tool_mcp.support import Session, session

NAME = "far"
_SCOPE = re.compile(r"amplifier mcp login far(?: --scope '?([^'\"]+)'?)?")
_VALUES: dict[str, Any] = {"number": 3, "integer": 3, "boolean": True, "object": {}, "array": []}


class Person:
    """Answers questions with their defaults."""

    async def request_answer(
        self, prompt: str, options: list[str] | None, timeout: float | None
    ) -> str | None:
        return options[0] if options else ""


class Browser(login.Browser):
    """Opens each page itself."""

    async def show(self, url: str) -> None:
        await super().show(url)
        self._opening = asyncio.create_task(asyncio.to_thread(open_page, url))


def open_page(url: str) -> None:
    httpx.get(url, follow_redirects=True, trust_env=False)


def find_issuer(url: str) -> str:
    """The authorization server that a server names, which users of credentials know."""
    path = "/.well-known/oauth-protected-resource"
    for address in (urljoin(url, path + urlsplit(url).path), urljoin(url, path)):
        response = httpx.get(address, trust_env=False)
        if response.is_success:
            return response.json()["authorization_servers"][0]
    raise LookupError(url)


def settings(url: str, scenario: str, context: dict[str, Any]) -> dict[str, Any]:
    """The configuration of the server, as a user who has read about it would write it."""
    oauth: dict[str, Any] = {key: context.get(key) for key in ("client_id", "client_secret")}
    if "client-credentials" in scenario:
        oauth |= {"grant": "client_credentials", "issuer": find_issuer(url)}
        oauth |= {"private_key": context.get("private_key_pem")}
        oauth |= {"algorithm": context.get("signing_algorithm")}
    if "cimd" in scenario:
        oauth["client_metadata_url"] = "https://conformance-test.local/client-metadata.json"
    oauth = {key: value for key, value in oauth.items() if value}
    return {"url": url, "required": True, **({"oauth": oauth} if oauth else {})}


def arguments(schema: dict[str, Any]) -> dict[str, Any]:
    """An input that matches a schema."""
    properties = schema.get("properties", {})
    return {name: _VALUES.get(field.get("type"), "text") for name, field in properties.items()}


async def call(mcp: Session, config: ServerConfig, tool: str, values: dict[str, Any]) -> None:
    mounted = mcp.coordinator.get("tools", tool)
    for _ in range(3):
        result = await mounted.execute(values)
        print(tool, result.output, result.error, file=sys.stderr)
        scope = _SCOPE.search(str(result.error))
        if scope is None:
            return
        await login.log_in_with_browser(NAME, config, pastes=False, scope=scope[1])


async def load_skills(mcp: Session, description: str) -> None:
    """Load each skill, and its other files."""
    for name in re.findall(r"^- (\S+@[0-9a-f]+):", description, re.MULTILINE):
        result = await mcp.call(f"{NAME}_skill", skill=name)
        print(name, result.output, result.error, file=sys.stderr)
        listed = re.search(r"'file' reads: (.*)", str(result.output))
        for file in listed[1].split(", ") if listed else ():
            print(file, await mcp.call(f"{NAME}_skill", skill=name, file=file), file=sys.stderr)


async def main() -> None:
    os.environ["AMPLIFIER_HOME"] = tempfile.mkdtemp(prefix="conformance-")
    os.environ["PYTHON_KEYRING_BACKEND"] = "keyring.backends.null.Keyring"
    scenario = os.environ.get("MCP_CONFORMANCE_SCENARIO", "")
    context = json.loads(os.environ.get("MCP_CONFORMANCE_CONTEXT") or "{}")
    server = settings(sys.argv[-1], scenario, context)
    config = ServerConfig.model_validate(server)
    login.Browser = Browser
    if scenario.startswith("auth/") and (
        config.oauth is None or config.oauth.grant == "authorization_code"
    ):
        await login.log_in_with_browser(NAME, config, pastes=False)
    async with session({NAME: server}) as mcp:
        mcp.coordinator.approval_system = Person()
        given = {each["name"]: each.get("arguments") for each in context.get("toolCalls", ())}
        schemas = {tool: mcp.coordinator.get("tools", tool).input_schema for tool in mcp.tools}
        for tool, schema in schemas.items():
            mounted = mcp.coordinator.get("tools", tool)
            name = tool.removeprefix(f"mcp_{NAME}_")
            values = arguments(schema)
            if name == "json_schema_echo":  # asks for the schema of another tool
                values = {"schema": next(each for each in schemas.values() if each != schema)}
            if name == "skill":
                # This scenario checks that nothing is read before a skill is loaded.
                if not scenario.endswith("no-prefetch"):
                    await load_skills(mcp, mounted.description)
                continue
            await call(mcp, config, tool, given.get(name) or values)


if __name__ == "__main__":
    asyncio.run(main())
