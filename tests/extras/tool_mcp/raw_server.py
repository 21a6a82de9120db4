"""A server that speaks as a test wants it to; a program of its own that needs only Python.

    python raw_server.py OPTION…        options as below

It knows the tools `echo`, `pid`, `die` (ends during the call), `hang` (never answers), `more` (adds
the tool `added`), `bad` (answers nonsense) and `refuse` (answers with an error). With the option `many`, it
has 200 tools of 1.4 KB each that echo; with `first=FILE`, the first tool has the fields in FILE, too; with
`others=FILE` it also lists what is in FILE. With
`skills=FOLDER` it offers the skills in that folder, and with `entry=FILE` the one in FILE has the fields there, too.
Skills in a folder `unlisted` are not listed. Every call that arrives becomes a line of the file CALLS, if that is set.
"""

import base64
import hashlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

OPTIONS = set(sys.argv[1:])
TOOLS = ["echo", "pid", "die", "hang", "more", "bad", "refuse"]
VERBS = [
    "create",
    "read",
    "list",
    "update",
    "delete",
    "archive",
    "export",
    "approve",
    "refund",
    "send",
]
NOUNS = [
    "invoice",
    "payment",
    "customer",
    "order",
    "product",
    "shipment",
    "contract",
    "employee",
    "vehicle",
    "project",
    "ticket",
    "article",
    "survey",
    "webhook",
    "coupon",
    "budget",
    "warehouse",
    "meeting",
    "account",
    "report",
]
if "many" in OPTIONS:
    TOOLS = [f"{verb}_{noun}" for noun in NOUNS for verb in VERBS]


def option(name: str) -> str | None:
    return next((each.partition("=")[2] for each in OPTIONS if each.startswith(f"{name}=")), None)


def send(message: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps({"jsonrpc": "2.0", **message}) + "\n")
    sys.stdout.flush()


def answer(number: Any, result: Any) -> None:
    send({"id": number, "result": result})


def listed() -> list[dict[str, Any]]:
    schema: dict[str, Any] = {"type": "object", "properties": {"text": {"type": "string"}}}
    if "many" in OPTIONS:
        about = "One of the fields that the system of record keeps for each entry. " * 3
        fields = {
            f"field_{number}": {"type": "string", "description": about} for number in range(5)
        }
        schema["properties"] |= fields
    tools = [
        {"name": name, "description": f"The tool {name}", "inputSchema": schema} for name in TOOLS
    ]
    if fields_of_first := option("first"):
        tools[0] |= json.loads(Path(fields_of_first).read_text())
    others = option("others")
    return tools + (json.loads(Path(others).read_text()) if others else [])


SKILLS = Path(option("skills") or "/nowhere")


def entry(file: Path) -> dict[str, Any]:
    """The entry of the skill with this `SKILL.md`, whose front matter is lines `key: text`."""
    lines = file.read_text().split("---\n")[1].splitlines()
    fields = dict(line.split(": ", 1) for line in lines)
    resources = [
        {
            "uri": f"skill://{path.relative_to(SKILLS)}",
            "digest": f"sha256:{hashlib.sha256(path.read_bytes()).hexdigest()}",
            "size": path.stat().st_size,
        }
        for path in sorted(file.parent.rglob("*"))
        if path.is_file()
    ]
    own = {"uri": f"skill://{file.relative_to(SKILLS)}"}
    changed = option("entry")
    changes = json.loads(Path(changed).read_text()) if changed else {}
    return {**own, "frontmatter": fields, "resources": resources, **changes.get(own["uri"], {})}


def skill_page(params: dict[str, Any]) -> dict[str, Any]:
    """One skill for each page."""
    files = [file for file in sorted(SKILLS.rglob("SKILL.md")) if "unlisted" not in file.parts]
    start = int(params.get("cursor") or 0)
    more = {"nextCursor": str(start + 1)} if start + 1 < len(files) else {}
    return {"skills": [entry(file) for file in files[start : start + 1]], **more}


def directory(uri: str) -> dict[str, Any]:
    children = sorted((SKILLS / uri.removeprefix("skill://")).iterdir())
    kinds = {True: "inode/directory", False: "text/plain"}
    return {
        "resources": [
            {"uri": f"{uri}/{path.name}", "name": path.name, "mimeType": kinds[path.is_dir()]}
            for path in children
        ]
    }


def call(number: Any, name: str, arguments: dict[str, Any]) -> None:
    if os.environ.get("CALLS"):
        with open(os.environ["CALLS"], "a") as file:
            file.write(f"{name}\n")
    if name == "die":
        print("this is the end", file=sys.stderr, flush=True)
        os._exit(7)
    if name == "hang":
        return
    if name == "bad":
        answer(number, {"content": "nonsense"})
        return
    if name == "refuse":
        said = str(arguments.get("text", "not today")) * int(arguments.get("times", 1))
        send({"id": number, "error": {"code": -32000, "message": said}})
        return
    if name == "more":
        TOOLS.append("added")
        TOOLS.remove("hang")
        send({"method": "notifications/tools/list_changed"})
    text = str(os.getpid()) if name == "pid" else str(arguments.get("text", name))
    text *= int(arguments.get("times", 1))
    answer(number, {"content": [{"type": "text", "text": text}]})


def handle(message: dict[str, Any]) -> None:
    number, method, params = message.get("id"), message.get("method"), message.get("params") or {}
    match method:
        case "initialize":
            capabilities: dict[str, Any] = {"tools": {"listChanged": True}}
            if option("skills"):
                settings = {"io.modelcontextprotocol/skills": {"directoryRead": True}}
                capabilities |= {"resources": {}, "extensions": settings}
            info = {"name": "raw", "version": "1"}
            version = params["protocolVersion"]
            answer(
                number,
                {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info},
            )
        case "tools/list":
            start = int(params.get("cursor") or 0)
            tools = listed()
            end = start + 3 if "pages" in OPTIONS else len(tools)
            page: dict[str, Any] = {"tools": tools[start:end]}
            answer(number, page | ({"nextCursor": str(end)} if end < len(tools) else {}))
            if "changing" in OPTIONS:
                send({"method": "notifications/tools/list_changed"})
            if "babbling" in OPTIONS:
                note = {"method": "notifications/message", "params": {"level": "info", "data": "x"}}
                notes = (json.dumps({"jsonrpc": "2.0", **note}) + "\n") * 1000
                while True:
                    sys.stdout.write(notes)
        case "skills/list":
            answer(number, skill_page(params))
        case "skills/get" | "resources/read" | "resources/directory/read":
            path = SKILLS / params["uri"].removeprefix("skill://")
            if not path.exists():
                send({"id": number, "error": {"code": -32602, "message": "there is no such thing"}})
            elif method == "skills/get":
                answer(number, {"skill": entry(path)})
            elif method == "resources/read":
                try:
                    content = {"text": path.read_bytes().decode()}
                except UnicodeDecodeError:
                    content = {"blob": base64.b64encode(path.read_bytes()).decode()}
                answer(number, {"contents": [{"uri": params["uri"], **content}]})
            else:
                answer(number, directory(params["uri"]))
        case "tools/call":
            call(number, params["name"], params.get("arguments") or {})
        case _ if number is not None:
            send({"id": number, "error": {"code": -32601, "message": "no such method"}})


def main() -> None:
    time.sleep(float(option("start-after") or 0))
    if fails := option("fail-until"):
        # Fails as often as the file is short.
        path, _, times = fails.rpartition(":")
        with open(path, "a+") as file:
            file.seek(0)
            if len(file.read()) < int(times):
                file.write("x")
                sys.exit("not yet, with sk-ant-api03-" + "a" * 90)
    if "exit" in OPTIONS:
        sys.exit("cannot work like this")
    if "flood" in OPTIONS:
        while True:
            sys.stdout.write("x" * 1_000_000)
    if "noise" in OPTIONS:
        print("Welcome to the raw server!", flush=True)
        print('{"not": "a message"}', flush=True)
    if "stubborn" in OPTIONS:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
        code = "import signal, time; signal.signal(15, signal.SIG_IGN); time.sleep(600)"
        child = [sys.executable, "-c", code]
        subprocess.Popen(child, start_new_session=True)
        subprocess.Popen(child, start_new_session=True, stdin=0)
    for line in sys.stdin:
        message = json.loads(line)
        if "silent" not in OPTIONS:
            handle(message)
    while "stubborn" in OPTIONS:
        time.sleep(60)


if __name__ == "__main__":
    main()
