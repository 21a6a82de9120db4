"""Names of the events that the kernel and modules emit.

A constant's name is its value in upper case, with ``:`` and ``.`` replaced by ``_``. The hook
registry accepts any event name; these are the standard ones.
"""

SESSION_START = "session:start"
SESSION_END = "session:end"
SESSION_FORK = "session:fork"
SESSION_RESUME = "session:resume"

PROMPT_SUBMIT = "prompt:submit"
PROMPT_COMPLETE = "prompt:complete"
MESSAGE_END = "message.end"

PLAN_START = "plan:start"
PLAN_END = "plan:end"

PROVIDER_REQUEST = "provider:request"
PROVIDER_RESPONSE = "provider:response"
PROVIDER_RETRY = "provider:retry"
PROVIDER_ERROR = "provider:error"
PROVIDER_THROTTLE = "provider:throttle"
PROVIDER_TOOL_SEQUENCE_REPAIRED = "provider:tool_sequence_repaired"
PROVIDER_RESOLVE = "provider:resolve"

LLM_REQUEST = "llm:request"
LLM_RESPONSE = "llm:response"

CONTENT_BLOCK_START = "content_block:start"
CONTENT_BLOCK_DELTA = "content_block:delta"
CONTENT_BLOCK_END = "content_block:end"

THINKING_DELTA = "thinking:delta"
THINKING_FINAL = "thinking:final"

TOOL_PRE = "tool:pre"
TOOL_POST = "tool:post"
TOOL_ERROR = "tool:error"

CONTEXT_PRE_COMPACT = "context:pre_compact"
CONTEXT_POST_COMPACT = "context:post_compact"
CONTEXT_COMPACTION = "context:compaction"
CONTEXT_INCLUDE = "context:include"

ORCHESTRATOR_COMPLETE = "orchestrator:complete"
EXECUTION_START = "execution:start"
EXECUTION_END = "execution:end"

USER_NOTIFICATION = "user:notification"

ARTIFACT_WRITE = "artifact:write"
ARTIFACT_READ = "artifact:read"

POLICY_VIOLATION = "policy:violation"
APPROVAL_REQUIRED = "approval:required"
APPROVAL_GRANTED = "approval:granted"
APPROVAL_DENIED = "approval:denied"

CANCEL_REQUESTED = "cancel:requested"
CANCEL_COMPLETED = "cancel:completed"

MODULE_ON_SESSION_READY_FAILED = "module:on_session_ready_failed"
MODULE_LOAD_FAILED = "module:load_failed"

ALL_EVENTS: list[str] = [value for name, value in list(globals().items()) if name.isupper()]
"""Every name above. ``provider:stream`` of the Orchestrator Contract is optional and not included."""
