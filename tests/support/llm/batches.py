"""The batch APIs of both vendors: requests that are sent together and answered once the batch has ended.

`ScriptedLLM.batches` has the batches of a server, and what goes wrong with them. Each request of a batch is
answered by the script of the server, like one that came alone.
"""

import json
import re
import secrets
import time
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from email.parser import BytesParser
from email.policy import HTTP
from typing import Any, Literal, Protocol
from urllib.parse import parse_qs

from tests.support.llm.http import Request
from tests.support.llm.rules import Rejected
from tests.support.llm.script import Raw, Reset, Status

ANTHROPIC_PATH = "/v1/messages/batches"
OPENAI_PATH = "/v1/batches"
FILES_PATH = "/v1/files"

_CUSTOM_ID = re.compile(r"[a-zA-Z0-9_-]{1,64}")
_ENDPOINTS = ("/v1/responses", "/v1/chat/completions")

Fate = Literal["answered", "errored", "expired", "cancelled"]
Answered = tuple[int, dict[str, Any]]
"""The status and the body of an answer."""


@dataclass
class Batch:
    """One batch.

    Attributes:
        requests: The bodies of its requests, by `custom_id`.
        results: What became of each, once it has ended.
    """

    id: str
    path: str
    requests: dict[str, dict[str, Any]]
    headers: Mapping[str, str]
    metadata: dict[str, str] = field(default_factory=dict[str, str])
    created: float = field(default_factory=time.time)
    refused: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    is_cancelled: bool = False
    has_ended: bool = False
    results: dict[str, tuple[Fate, Answered | None]] = field(
        default_factory=dict[str, tuple[Fate, Answered | None]]
    )

    def count(self, *fates: Fate) -> int:
        return sum(fate in fates for fate, _ in self.results.values())


class Asks(Protocol):
    """Answers one request of a batch as if it had come alone."""

    def __call__(self, request: Request) -> Awaitable[Answered]: ...


class Batches:
    """The batches of one server.

    Args:
        ask: Answers one request.

    Attributes:
        all: The batches, in the order they came.
        seconds: How long a batch takes; None for ever.
        fate: What becomes of a request: (batch, custom_id) -> fate.
        fault: What happens instead of a request to the batch API; None to handle it.
        loses: Whether a request is handled but its answer is lost.
        enqueued: The most requests that OpenAI takes in a batch; more are refused after validation.
    """

    def __init__(self, ask: Asks) -> None:
        self.all: list[Batch] = []
        self.seconds: float | None = 0.0
        self.fate: Callable[[Batch, str], Fate] = lambda batch, custom_id: "answered"
        self.fault: Callable[[Request], Status | Reset | Raw | None] = lambda request: None
        self.loses: Callable[[Request], bool] = lambda request: False
        self.enqueued: int | None = None
        self._ask = ask
        self._files: dict[str, bytes] = {}

    @property
    def answered(self) -> list[dict[str, Any]]:
        """The bodies of all requests that were answered, and are paid for."""
        return [
            batch.requests[custom_id]
            for batch in self.all
            for custom_id, (fate, _) in batch.results.items()
            if fate == "answered"
        ]

    @staticmethod
    def has(path: str) -> bool:
        """Whether a path belongs to a batch API."""
        return path.startswith((ANTHROPIC_PATH, OPENAI_PATH, FILES_PATH))

    async def handle(self, request: Request) -> tuple[str, Any]:
        """The content type and the content that answer a request; content is JSON data or text.

        Raises:
            Rejected: The API would refuse it.
        """
        method, path = request.method, request.path
        if path.startswith(FILES_PATH):
            return self._file(request)
        root = ANTHROPIC_PATH if path.startswith(ANTHROPIC_PATH) else OPENAI_PATH
        is_anthropic = root == ANTHROPIC_PATH
        rest = path.removeprefix(root).strip("/").split("/")
        if method == "POST" and rest == [""]:
            batch = self._anthropic(request) if is_anthropic else self._openai(request)
            self.all.append(batch)
            return "application/json", self._shown(batch)
        if method == "GET" and rest == [""]:
            return "application/json", await self._list(request, root)
        batch = next((b for b in self.all if b.id == rest[0] and b.path == root), None)
        if batch is None:
            raise Rejected(
                f"No batch found with id '{rest[0]}'", status=404, error="not_found_error"
            )
        await self._go_on(batch)
        match method, *rest[1:]:
            case ["GET"]:
                return "application/json", self._shown(batch)
            case ["POST", "cancel"]:
                if batch.has_ended:
                    raise Rejected(f"Batch {batch.id} has already ended", status=409)
                batch.is_cancelled = True
                return "application/json", self._shown(batch)
            case ["GET", "results"] if is_anthropic:
                if not batch.has_ended:
                    raise Rejected(f"Batch {batch.id} has no available results", status=404)
                return "application/x-jsonl", self._results(batch)
            case _:
                raise Rejected(f"Not found: {method} {path}", status=404)

    # -- sending -----------------------------------------------------------------------------

    def _anthropic(self, request: Request) -> Batch:
        body = request.body
        if "anthropic-version" not in request.headers:
            raise Rejected("anthropic-version: header is required")
        if not isinstance(body, dict) or body.keys() != {"requests"}:
            raise Rejected("requests: Field required")
        requests = body["requests"]
        if not isinstance(requests, list) or not 1 <= len(requests) <= 100_000:
            raise Rejected("requests: List should have 1 to 100000 items")
        found: dict[str, dict[str, Any]] = {}
        for at, item in enumerate(requests):
            if not isinstance(item, dict) or item.keys() != {"custom_id", "params"}:
                raise Rejected(f"requests.{at}: expected custom_id and params")
            if not _CUSTOM_ID.fullmatch(item["custom_id"]):
                raise Rejected(f"requests.{at}.custom_id: String should match {_CUSTOM_ID.pattern}")
            if item["custom_id"] in found:
                raise Rejected(f"requests.{at}.custom_id: duplicate")
            if not isinstance(item["params"], dict) or "stream" in item["params"]:
                raise Rejected(f"requests.{at}.params.stream: not supported in a batch")
            found[item["custom_id"]] = item["params"]
        return Batch(f"msgbatch_{secrets.token_hex(10)}", ANTHROPIC_PATH, found, request.headers)

    def _openai(self, request: Request) -> Batch:
        body = request.body if isinstance(request.body, dict) else {}
        if body.get("endpoint") not in _ENDPOINTS:
            raise Rejected(f"Invalid value: {body.get('endpoint')!r}", param="endpoint")
        if body.get("completion_window") != "24h":
            raise Rejected("Invalid value: expected '24h'", param="completion_window")
        metadata = body.get("metadata") or {}
        if len(metadata) > 16 or any(len(k) > 64 or len(v) > 512 for k, v in metadata.items()):
            raise Rejected("Invalid 'metadata'", param="metadata")
        file = self._files.get(body.get("input_file_id", ""))
        if file is None:
            raise Rejected("No such File object", status=404, param="input_file_id")
        requests: dict[str, dict[str, Any]] = {}
        refused: list[dict[str, Any]] = []
        models: set[str] = set()
        for number, line in enumerate(file.splitlines(), 1):
            item = json.loads(line)
            custom_id = item["custom_id"]
            if item.keys() != {"custom_id", "method", "url", "body"}:
                refused.append(_fault("invalid_json_line", "unexpected keys", number))
            elif item["method"] != "POST" or item["url"] != body["endpoint"]:
                refused.append(_fault("mismatched_endpoint", "url differs", number))
            elif custom_id in requests:
                refused.append(_fault("duplicate_custom_id", f"{custom_id} is a duplicate", number))
            elif item["body"].get("stream"):
                refused.append(_fault("invalid_request", "stream is not supported", number))
            models.add(item["body"].get("model"))
            requests[custom_id] = item["body"]
        if len(models) > 1:
            refused.append(_fault("model_mismatch", "only one model per batch", None))
        if self.enqueued is not None and len(requests) > self.enqueued:
            message = "Enqueued token limit reached for this model."
            refused.append(_fault("token_limit_exceeded", message, None))
        batch_id = f"batch_{secrets.token_hex(12)}"
        headers = {**request.headers, "endpoint": body["endpoint"]}
        return Batch(batch_id, OPENAI_PATH, requests, headers, metadata, refused=refused)

    def _file(self, request: Request) -> tuple[str, Any]:
        parts = request.path.removeprefix(FILES_PATH).strip("/").split("/")
        if request.method == "GET" and parts[1:] == ["content"] and parts[0] in self._files:
            return "application/octet-stream", self._files[parts[0]]
        if request.method != "POST" or parts != [""]:
            raise Rejected(f"No such File object: {parts[0]}", status=404)
        head = f"content-type: {request.headers['content-type']}\r\n\r\n".encode()
        form = BytesParser(policy=HTTP).parsebytes(head + request.raw)
        fields = {
            part.get_param("name", header="content-disposition"): part
            for part in form.iter_parts()  # pyright: ignore[reportAttributeAccessIssue]
        }
        if set(fields) != {"purpose", "file"} or fields["purpose"].get_content().strip() != "batch":
            raise Rejected("expected 'purpose' batch and 'file'", param="purpose")
        name = fields["file"].get_filename()
        if not str(name).endswith(".jsonl"):
            raise Rejected("Invalid file format for Batch API. Must be .jsonl", param="file")
        content = fields["file"].get_payload(decode=True)
        assert isinstance(content, bytes)
        file_id = self._stored(content)
        return "application/json", {"id": file_id, "object": "file", "purpose": "batch"}

    def _stored(self, content: bytes) -> str:
        file_id = f"file-{secrets.token_hex(8)}"
        self._files[file_id] = content
        return file_id

    # -- the life of a batch -----------------------------------------------------------------

    async def _go_on(self, batch: Batch) -> None:
        """End a batch whose time has come."""
        is_due = self.seconds is not None and time.time() - batch.created >= self.seconds
        if batch.has_ended or not (is_due or batch.is_cancelled or batch.refused):
            return
        batch.has_ended = True
        if batch.refused:
            return
        for number, (custom_id, body) in enumerate(batch.requests.items()):
            fate = self.fate(batch, custom_id)
            if batch.is_cancelled and not is_due and number:
                fate = "cancelled"  # The first was answered by then.
            answered: Answered | None = None
            if fate == "answered":
                path = batch.headers.get("endpoint", "/v1/messages")
                headers = {**batch.headers, "content-type": "application/json"}
                alone = Request("POST", path, "", headers, json.dumps(body).encode(), body)
                answered = await self._ask(alone)
                fate = "answered" if answered[0] == 200 else "errored"
            batch.results[custom_id] = fate, answered

    async def _list(self, request: Request, root: str) -> dict[str, Any]:
        query = {name: values[0] for name, values in parse_qs(request.query).items()}
        limit = int(query.get("limit", 20))
        if not 1 <= limit <= 1000:
            raise Rejected("limit: Input should be from 1 to 1000", param="limit")
        batches = [batch for batch in reversed(self.all) if batch.path == root]
        after = query.get("after_id") or query.get("after")
        if after is not None:
            ids = [batch.id for batch in batches]
            if after not in ids:
                raise Rejected("after_id: not found", param="after")
            batches = batches[ids.index(after) + 1 :]
        page = batches[:limit]
        for batch in page:
            await self._go_on(batch)
        shown = [self._shown(batch) for batch in page]
        last = page[-1].id if page else None
        return {"data": shown, "has_more": len(batches) > limit, "last_id": last}

    def _shown(self, batch: Batch) -> dict[str, Any]:
        if batch.path == ANTHROPIC_PATH:
            return self._shown_by_anthropic(batch)
        status = "in_progress"
        if batch.refused and batch.has_ended:
            status = "failed"
        elif batch.has_ended:
            expired = batch.count("expired")
            status = "cancelled" if batch.is_cancelled else "expired" if expired else "completed"
        elif batch.is_cancelled:
            status = "cancelling"
        shown: dict[str, Any] = {
            "id": batch.id,
            "object": "batch",
            "endpoint": batch.headers["endpoint"],
            "status": status,
            "completion_window": "24h",
            "created_at": int(batch.created),
            "metadata": batch.metadata or None,
            "request_counts": {
                "total": len(batch.requests),
                "completed": batch.count("answered"),
                "failed": batch.count("errored"),
            },
            "errors": {"object": "list", "data": batch.refused} if status == "failed" else None,
        }
        outputs: dict[str, tuple[Fate, ...]] = {
            "output_file_id": ("answered",),
            "error_file_id": ("errored", "expired", "cancelled"),
        }
        for name, fates in outputs.items():
            if status != "failed" and batch.has_ended and batch.count(*fates):
                lines = (
                    self._line_of_openai(custom_id, *result)
                    for custom_id, result in batch.results.items()
                    if result[0] in fates
                )
                shown[name] = self._stored("".join(lines).encode())
        return shown

    def _line_of_openai(self, custom_id: str, fate: Fate, answered: Answered | None) -> str:
        response = error = None
        if answered is not None:
            status, body = answered
            response = {"status_code": status, "request_id": secrets.token_hex(8), "body": body}
        elif fate == "errored":
            body = {"error": {"message": "scripted failure", "type": "server_error"}}
            response = {"status_code": 500, "request_id": secrets.token_hex(8), "body": body}
        else:
            error = {"code": f"batch_{fate}", "message": f"This request was {fate}."}
        line = {"id": secrets.token_hex(8), "custom_id": custom_id, "response": response}
        return json.dumps({**line, "error": error}) + "\n"

    def _shown_by_anthropic(self, batch: Batch) -> dict[str, Any]:
        created = datetime.fromtimestamp(batch.created, UTC)
        processing = 0 if batch.has_ended else len(batch.requests)
        status = "canceling" if batch.is_cancelled else "in_progress"
        return {
            "id": batch.id,
            "type": "message_batch",
            "processing_status": "ended" if batch.has_ended else status,
            "request_counts": {
                "processing": processing,
                "succeeded": batch.count("answered"),
                "errored": batch.count("errored"),
                "canceled": batch.count("cancelled"),
                "expired": batch.count("expired"),
            },
            "created_at": created.isoformat(),
            "expires_at": (created + timedelta(hours=24)).isoformat(),
            "results_url": f"https://example.invalid/{batch.id}" if batch.has_ended else None,
        }

    def _results(self, batch: Batch) -> bytes:
        lines: list[str] = []
        for custom_id, (fate, answered) in reversed(batch.results.items()):
            result: dict[str, Any] = {"type": "canceled" if fate == "cancelled" else fate}
            if fate == "answered" and answered is not None:
                result = {"type": "succeeded", "message": answered[1]}
            elif fate == "errored":
                error = {"type": "api_error", "message": "scripted failure"}
                result["error"] = answered[1] if answered else {"type": "error", "error": error}
            lines.append(json.dumps({"custom_id": custom_id, "result": result}) + "\n")
        return "".join(lines).encode()


def _fault(code: str, message: str, line: int | None) -> dict[str, Any]:
    return {"code": code, "message": message, "param": None, "line": line}
