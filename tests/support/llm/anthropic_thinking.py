"""Thinking blocks: signed when they are sent, and recognised when they come back."""

import base64
import contextlib
import hashlib
import json
from dataclasses import dataclass, field
from typing import Any

from tests.support.llm.rules import Rejected

# What a RedactedThinking without data of its own carries; any server knows it.
REDACTED_DATA = base64.b64encode(hashlib.sha512(b"redacted thinking").digest()).decode()


def sign(thinking: str) -> str:
    """The signature this server gives a thinking text; every instance gives the same."""
    digest = hashlib.sha512(b"thinking\0" + thinking.encode("utf-8", "surrogatepass")).digest()
    return base64.b64encode(digest).decode()


@dataclass
class Issued:
    """What a server has sent and expects back unchanged."""

    signatures: dict[str, str] = field(default_factory=dict[str, str])
    of_any_text: set[str] = field(default_factory=set[str])
    redacted: set[str] = field(default_factory=lambda: {REDACTED_DATA})
    thinking_before_call: dict[str, list[dict[str, Any]]] = field(
        default_factory=dict[str, list[dict[str, Any]]]
    )

    def remember(self, content: list[dict[str, Any]]) -> None:
        """Takes note of an answer's content blocks."""
        thoughts = [b for b in content if b["type"] in ("thinking", "redacted_thinking")]
        for block in content:
            if block["type"] == "thinking":
                self.signatures[block["signature"]] = block["thinking"]
            elif block["type"] == "redacted_thinking":
                self.redacted.add(block["data"])
            elif block["type"] == "tool_use" and thoughts:
                self.thinking_before_call[block["id"]] = thoughts

    def remember_stream(self, events: list[bytes]) -> None:
        """Takes note of the thinking in the events of a stream, which may be malformed.

        What text a signature is for cannot be known then, so it is accepted with any.
        """
        for raw in events:
            with contextlib.suppress(ValueError, RecursionError, AttributeError):
                event = json.loads(raw.partition(b"data: ")[2])
                for source in (event.get("content_block"), event.get("delta")):
                    fields = source if isinstance(source, dict) else {}
                    if isinstance(signature := fields.get("signature"), str):
                        self.of_any_text.add(signature)
                    if isinstance(data := fields.get("data"), str):
                        self.redacted.add(data)


def check_thinking(body: dict[str, Any], issued: Issued) -> None:
    """Raises `Rejected` for thinking that is configured or sent back wrongly."""
    enabled = _check_thinking_config(body)
    last = max(
        (n for n, m in enumerate(body["messages"]) if m["role"] == "assistant"), default=None
    )
    for at, message in enumerate(body["messages"]):
        if message["role"] != "assistant" or isinstance(message["content"], str):
            continue
        for index, block in enumerate(message["content"]):
            _check_thought(block, f"messages.{at}.content.{index}", issued)
        if enabled and at == last:
            _check_last_thoughts(message["content"], at, issued)


def _check_thinking_config(body: dict[str, Any]) -> bool:
    thinking = body.get("thinking")
    if thinking is None:
        return False
    if not isinstance(thinking, dict) or thinking.get("type") not in (
        "enabled",
        "disabled",
        "adaptive",
    ):
        raise Rejected("thinking: Input tag should be one of 'enabled', 'disabled', 'adaptive'")
    if thinking["type"] == "disabled":
        return False
    if thinking["type"] == "enabled":
        budget = thinking.get("budget_tokens")
        if not isinstance(budget, int) or budget < 1024:
            raise Rejected(
                "thinking.enabled.budget_tokens: Input should be greater than or equal to 1024"
            )
        if "max_tokens" in body and body["max_tokens"] <= budget:
            raise Rejected("`max_tokens` must be greater than `thinking.budget_tokens`.")
    if body.get("temperature", 1) != 1:
        raise Rejected("`temperature` may only be set to 1 when thinking is enabled.")
    if (body.get("tool_choice") or {}).get("type") in ("any", "tool"):
        raise Rejected("Thinking may not be enabled when tool_choice forces tool use.")
    return True


def _check_thought(block: dict[str, Any], where: str, issued: Issued) -> None:
    if block["type"] == "thinking":
        signature, thinking = block["signature"], block["thinking"]
        known = issued.signatures.get(signature)
        if not isinstance(thinking, str) or not (
            known == thinking or signature == sign(thinking) or signature in issued.of_any_text
        ):
            raise Rejected(f"{where}: Invalid `signature` in `thinking` block")
    elif block["type"] == "redacted_thinking" and block["data"] not in issued.redacted:
        raise Rejected(f"{where}: Invalid `data` in `redacted_thinking` block")


def _check_last_thoughts(blocks: list[dict[str, Any]], at: int, issued: Issued) -> None:
    calls = [b["id"] for b in blocks if b["type"] == "tool_use"]
    expected = next((issued.thinking_before_call.get(call) for call in calls), None)
    if not expected:
        return
    thoughts = [b for b in blocks if b["type"] in ("thinking", "redacted_thinking")]
    if not thoughts or blocks[0]["type"] not in ("thinking", "redacted_thinking"):
        raise Rejected(
            f"messages.{at}.content.0.type: Expected `thinking` or `redacted_thinking`, but found "
            f"`{blocks[0]['type']}`. When `thinking` is enabled, a final `assistant` message must "
            "start with a thinking block (preceeding the lastmost set of `tool_use` and "
            "`tool_result` blocks)."
        )
    if thoughts != expected:
        raise Rejected(
            f"messages.{at}.content.0: `thinking` or `redacted_thinking` blocks in the latest "
            "assistant message cannot be modified. These blocks must remain as they were in the "
            "original response."
        )
