"""`amplifier mcp add|list|test|login|logout|remove`: the MCP servers of every profile."""

# Without `from __future__ import annotations`, whose strings Typer would compile at every start.
import os
import shlex
import subprocess
from collections.abc import Collection, Iterator, Sequence
from datetime import UTC, datetime
from importlib.util import find_spec
from typing import Annotated, Any, cast

import typer
from pydantic import ValidationError

from amplifier_app.base.errors import ConfigError, UsageError
from amplifier_app.base.json_text import json_text
from amplifier_app.base.logins import LoginFacts, LoginStore
from amplifier_app.base.outcome import Ending, Outcome
from amplifier_app.base.sanitize import one_line
from amplifier_app.base.stdio import stdin_is_tty, to_stderr
from amplifier_app.commands.answers import confirm
from amplifier_app.commands.event_loop import run_loop
from amplifier_app.commands.finish import Invocation
from amplifier_app.commands.group import eager_group
from amplifier_app.commands.run.choose import choose
from amplifier_app.commands.run.request import Request
from amplifier_app.commands.settings import (
    ScopeOption,
    Target,
    changing,
    report,
    warn_of_secret,
)
from amplifier_app.commands.tool.calls import OPTIONS, describe_tool, tool_session
from amplifier_app.commands.typer_options import argument, option, takes_options
from amplifier_app.plan.documents.scopes import read_settings
from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.tree import edit
from amplifier_app.plan.tree.entries import NoSuchPath, entry_key, find, list_entries
from amplifier_app.plan.tree.nodes import NOWHERE, MapNode, plain_data, to_node
from amplifier_app.render.table import Column, OutputOption, print_listing
from amplifier_app.render.text import StderrNotices
from amplifier_app.sources.loading import load_profile
from amplifier_app.trust import folder_if_trusted
from amplifier_extras.tool_mcp.config import MODULE_ID, McpConfig, ServerConfig
from amplifier_support.environment import without_model_keys
from amplifier_support.fields import read_field
from amplifier_support.installation import install_command, install_words
from amplifier_support.programs import find_program
from amplifier_support.text import did_you_mean

app = eager_group("Add, list, test and remove MCP servers, and log in to them.")

_ADDRESS = ("tools", MODULE_ID, "config", "servers")
_SDK = "mcp"
_NameArgument = Annotated[str, argument("NAME", "The server.")]


@app.command()
def add(
    name: Annotated[str, argument("NAME", "A short name for the server.")],
    command: Annotated[
        list[str] | None, argument("-- COMMAND", "The program to start, and its arguments.")
    ] = None,
    url: Annotated[str | None, option("--url URL", "The address of a running server.")] = None,
    header: Annotated[
        list[str] | None,
        option("--header NAME=VALUE", "With --url: sent with each request; repeatable."),
    ] = None,
    env: Annotated[
        list[str] | None, option("--env NAME=VALUE", "A variable for the program; repeatable.")
    ] = None,
    network: Annotated[bool, option("--network", "Let the program use the network.")] = False,
    scope: ScopeOption = None,
) -> None:
    """Add an MCP server to every profile (through your settings).

    \b
      amplifier mcp add files -- npx -y @modelcontextprotocol/server-filesystem .
      amplifier mcp add tracker --url https://tracker.example/mcp --header 'Authorization=Bearer ${TRACKER_TOKEN}'

    A program runs in the sandbox of commands, without network unless --network is given. Without --scope,
    changes your own settings for this project, or outside a project your own settings.
    """
    server: dict[str, Any] = {}
    if (url is None) == (not command):
        raise UsageError("expected either a COMMAND after -- or --url")
    if command:
        server = {"command": command[0], "args": command[1:], "env": _pairs("--env", env)}
        server |= {"sandbox": {"network": "all"}} if network else {}
    else:
        server = {"url": url, "headers": _pairs("--header", header)}
    if (header and command) or ((env or network) and url):
        raise UsageError("--header goes with --url, --env and --network with a COMMAND")
    server = {key: value for key, value in server.items() if value}
    with changing(scope, in_project="local") as where:
        _add(name, server, where)
    to_stderr(f"amplifier: try it: amplifier mcp test {name}")
    if find_spec(_SDK) is None:
        _install_sdk()


def _pairs(option: str, texts: Sequence[str] | None) -> dict[str, str]:
    pairs = [text.partition("=") for text in texts or ()]
    for name, sign, _ in pairs:
        if not sign or not name:
            raise UsageError(f"{option}: expected NAME=VALUE")
    return {name: value for name, _, value in pairs}


def _add(name: str, server: dict[str, Any], where: Target) -> None:
    config = {"servers": {name: server}}
    try:
        McpConfig.model_validate(config)
    except ValidationError as error:
        raise UsageError(error.errors()[0]["msg"].removeprefix("Value error, ")) from None
    present = _config_in(where)
    if name in _servers(present):
        hint = f"Remove it first: amplifier mcp remove {name} --scope {where.scope}"
        raise ConfigError(f"the {where.scope} settings already have a server {name!r}", hint=hint)
    if present is not None:
        edit.set_value(where.file, (*_ADDRESS, name), server)
    else:
        entry = {"module": MODULE_ID, "config": config}
        edit.append_value(where.file, ("tools",), entry)
    option, pairs = ("--header", "headers") if "headers" in server else ("--env", "env")
    values = cast("MapNode", to_node(server.get(pairs, {}), NOWHERE))
    warning = warn_of_secret(values, option)
    report(where, f"added the MCP server {name}", warning)


def _config_in(where: Target) -> dict[str, Any] | None:
    """Return the configuration of the module in one settings file; None if it is not in it."""
    for file in read_settings(where.project).files:
        for entry in list_entries(file.tree, "tools") if file.path == where.file else ():
            if entry_key(entry) == MODULE_ID:
                return plain_data(entry).get("config") or {}
    return None


def _servers(config: dict[str, Any] | None) -> dict[str, Any]:
    return (config or {}).get("servers") or {}


def _install_sdk() -> None:
    """Offer to install the SDK of the protocol, which only sessions with servers need."""
    name, *arguments = install_words(_SDK)
    command = shlex.join((name, *arguments))
    to_stderr(f"amplifier: warning: servers are unavailable without the MCP SDK: {command}")
    if not stdin_is_tty() or not os.isatty(2):
        return
    if confirm("Install it?", False):
        program = name if os.path.isabs(name) else find_program(name)
        if program is None:
            raise ConfigError(f"{name} was not found", hint=f"Install the SDK with: {command}")
        words = [program, *arguments]
        done = subprocess.run(words, env=without_model_keys(os.environ), check=False)
        if done.returncode:
            message = f"the MCP SDK was not installed: {name} ended with {done.returncode}"
            raise ConfigError(message, hint=f"Install it with: {command}")


@app.command("list")
def list_servers(output: OutputOption = "text") -> None:
    """List the MCP servers of the default profile and your settings. Starts none of them."""
    servers = [*_planned()]
    rows = [
        (
            server["name"],
            server["how"],
            "yes" if server["enabled"] else "no",
            _login_text(server["login"]),
            server["from"],
        )
        for server in servers
    ]
    columns = [
        Column("SERVER"),
        Column("PROGRAM OR URL", "end", least=20),
        Column("ENABLED", drop=2),
        Column("LOGIN", drop=1),
        Column("FROM", "middle"),
    ]
    empty = "No servers. Add one: amplifier mcp add NAME -- COMMAND"
    print_listing(output, servers, columns, rows, empty)


def _planned() -> Iterator[dict[str, Any]]:
    """Yield the servers of the default profile, without secrets."""
    tree = masked_tree(load_profile(project=folder_if_trusted()).merged.document)
    try:
        servers = find(tree, _ADDRESS)
    except NoSuchPath:
        return
    logins = {(login.server, login.url): login for login in LoginStore().facts()}
    for name, node in servers.items.items() if isinstance(servers, MapNode) else ():
        data: dict[str, Any] = plain_data(node)
        words = [data.get("command") or data.get("url"), *(data.get("args") or ())]
        how = " ".join(str(word) for word in words)
        enabled = data.get("enabled", True) is not False
        login = logins.get((name, str(data.get("url"))))
        yield {
            "name": name,
            "how": one_line(how),
            "enabled": enabled,
            "from": str(node.at),
            "login": None if login is None else _login_data(login),
        }


def _login_data(login: LoginFacts) -> dict[str, Any]:
    end = login.expires_at
    return {
        "valid": login.is_valid,
        "issuer": login.issuer,
        "expires_at": None if end is None else datetime.fromtimestamp(end, UTC).isoformat(),
        "renewable": login.is_renewable,
    }


def _login_text(login: dict[str, Any] | None) -> str:
    """Say until when a login can be used."""
    if login is None:
        return "-"
    if not login["valid"]:
        return "ended"
    if login["expires_at"] is None:
        return "yes"
    end = datetime.fromisoformat(login["expires_at"]).astimezone()
    renewed = ", then renewed" if login["renewable"] else ""
    return f"until {end:%Y-%m-%d %H:%M}{renewed}"


@app.command("test")
@takes_options(Request, *(option for option in OPTIONS if option not in ("approve", "mode")))
def try_server(
    context: typer.Context, name: _NameArgument, request: Request, output: OutputOption = "text"
) -> None:
    """Start a server, list its tools, and stop it. Asks no model; exits with 3 if it fails.

    \b
      amplifier mcp test files
      amplifier mcp test files --output json
    """
    servers = ".".join(_ADDRESS)
    sets = [*(request.sets or ()), f"{servers}.{name}.required=true"]
    if request.plan is None and request.profile is None:
        known = [server["name"] for server in _planned()]
        _require(name, known)
        sets += [f"{servers}.{other}.enabled=false" for other in known if other != name]
    request = request._replace(sets=sets)
    invocation: Invocation = context.obj
    tools = run_loop(_tools(name, request, invocation))
    if output == "json":
        invocation.stdout.write(json_text(tools) + "\n")
        return
    for tool in tools:
        text = tool["description"].strip().partition("\n")[0]
        invocation.stdout.write(f"{tool['name']}  {one_line(text, 100)}\n")
    to_stderr(
        f"amplifier: {name} is ready: {len(tools)} tools; to pin them: amplifier plan lock, then --locked"
    )


def _require(name: str, known: Collection[str]) -> None:
    if name not in known:
        hint = did_you_mean(name, known) or "Servers: " + (", ".join(known) or "none")
        raise UsageError(f"there is no MCP server {name!r}", hint=hint)


async def _tools(name: str, request: Request, invocation: Invocation) -> list[dict[str, Any]]:
    async with tool_session(request, invocation, StderrNotices(quiet=False)) as (session, _):
        tools = session.session.coordinator.get("tools")
        return [
            describe_tool(key, tool)
            for key, tool in tools.items()
            if read_field(read_field(tool, "server"), "name") == name
        ]


@app.command()
@takes_options(Request, "profile", "plan", "sets", "trust", "no_project")
def login(
    context: typer.Context,
    name: _NameArgument,
    request: Request,
    no_browser: Annotated[
        bool, option("--no-browser", "Ask for the address at which a browser elsewhere has ended.")
    ] = False,
    scope: Annotated[
        str | None, option("--scope TEXT", "Scopes to request as well, separated by spaces.")
    ] = None,
) -> None:
    """Log in to an MCP server with OAuth, in a browser.

    \b
      amplifier mcp login tracker
      amplifier mcp login tracker --no-browser
      amplifier mcp login tracker --scope 'files:write'

    Its tokens are stored in the keyring, or else in a file that only you can read, and are renewed while
    the authorization server permits it.
    """
    invocation: Invocation = context.obj
    server = _find_server(name, request, invocation)
    if find_spec(_SDK) is None:
        raise ConfigError(
            "logging in needs the MCP SDK", hint=f"Install it with: {install_command(_SDK)}"
        )
    from mcp.client.auth import OAuthFlowError

    from amplifier_extras.tool_mcp.login import log_in_with_browser

    try:
        made = run_loop(log_in_with_browser(name, server, pastes=no_browser, scope=scope))
    except OAuthFlowError as error:
        text = one_line(str(error), 500)
        message = f"cannot log in to the MCP server {name!r}: {text}"
        invocation.outcome = Outcome(Ending.AUTHENTICATION, message)
        return
    if made is None:
        to_stderr(f"amplifier: {name} needs no login")
        return
    login, stored = made
    place = "the keyring" if stored.where == "keyring" else str(LoginStore().file)
    until = _login_text(_login_data(login.facts)).removeprefix("yes")
    to_stderr(f"amplifier: logged in to {name} {until}".rstrip() + f"; stored in {place}")


def _find_server(name: str, request: Request, invocation: Invocation) -> ServerConfig:
    """Return the settings of a server that a user can log in to.

    Raises:
        UsageError: The server does not exist, or needs no login.
    """
    tools = choose(request.validate(), invocation.stdout).plan.data.get("tools", [])
    servers: dict[str, Any] = {}
    for entry in tools:
        if entry["module"] == MODULE_ID:
            config: dict[str, Any] = entry.get("config") or {}
            servers |= config.get("servers") or config.get("mcpServers") or {}
    _require(name, servers)
    try:
        server = ServerConfig.model_validate(servers[name])
    except ValidationError as error:
        reason = error.errors()[0]["msg"].removeprefix("Value error, ")
        raise ConfigError(f"the MCP server {name!r} is misconfigured: {reason}") from None
    if server.url is None:
        raise UsageError(f"{name} is a program, which needs no login")
    if server.has_token:
        raise UsageError(f"{name} has its token in the header Authorization of its settings")
    if server.oauth is not None and server.oauth.grant == "client_credentials":
        raise UsageError(f"{name} uses the client credentials of its settings, which need no login")
    return server


@app.command()
def logout(name: _NameArgument) -> None:
    """Delete the stored login of an MCP server."""
    if not _log_out(name):
        to_stderr(f"amplifier: there is no login for {name}")


def _log_out(name: str) -> bool:
    """Delete the logins of a server, and say so; returns False if there are none."""
    logins = LoginStore().forget(name)
    for each in logins:
        to_stderr(f"amplifier: deleted the login for {name} at {each.issuer}")
    return bool(logins)


@app.command()
def remove(name: _NameArgument, scope: ScopeOption = None) -> None:
    """Remove an MCP server from your settings, and delete its login.

    Without --scope, changes your own settings for this project, or outside a project your own settings.
    """
    with changing(scope, in_project="local") as where:
        if not edit.remove_value(where.file, (*_ADDRESS, name)):
            known = list(_servers(_config_in(where)))
            at = next((each["from"] for each in _planned() if each["name"] == name), None)
            hint = f"It is set at {at}." if at else did_you_mean(name, known)
            raise UsageError(f"the {where.scope} settings have no MCP server {name!r}", hint=hint)
        if _config_in(where) == {}:
            edit.remove_value(where.file, ("tools", MODULE_ID))
        report(where, f"removed the MCP server {name}")
    _log_out(name)
