"""The history normaliser: turns the messages of a context into a request every vendor accepts.

Loops call `to_chat_request`; every bundled provider calls `normalise` on its request, which returns
at once if the first has built it. Contexts use `call_ids` and `result_ids` to find out which stored
messages belong together.

The rules, in the order they are applied (Context and Orchestrator Specification, Message Storage
Rules; Context Contract, Message Format):

* Both message forms are read: block lists with `tool_call`/`tool_result` blocks and role
  `function`, and `tool_calls` lists with JSON-string arguments and role `tool`; typed models and
  the vendors' own spellings too. A call that is present in both forms counts once, as its block; a
  `thinking_block` of the message counts where its content has no thinking.
* Both forms go out: an assistant message has its blocks and, made from them, `tool_calls` with
  ``{id, tool, arguments}`` and its first `thinking_block`, as published loops and providers do.
* Tool results directly follow the assistant message whose calls they answer, in call order, and each
  call is answered exactly once: a second result or one without a call is dropped, and a call without
  a result is answered with `INTERRUPTED`. A call id used again later in the conversation is a new
  call and gets a new id.
* A thinking block goes back unchanged or not at all: without a signature, with text that cannot be
  encoded, outside an assistant message, or at the end of one, it is left out.
* Empty messages and blank text blocks are left out. The first message that is not a system or
  developer message is a user message: where it would be an assistant message, `LEAD_IN` is put in
  front, which loses nothing. The last one is never an assistant message, which newer models refuse:
  `CONTINUE` is put behind, unless the message carries a true `prefill`.
* Calls name their tools in the characters every vendor accepts: a model may have made up any name.
* Text can always be encoded: a pair of surrogates is joined, a lone one becomes U+FFFD.
* `metadata` and unknown keys of stored messages stay behind; extra keys of blocks are kept.
"""
