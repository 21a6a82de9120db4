"""Mounting context-simple on a real coordinator, and the suites every context has to pass."""

from amplifier_core.coordinator import ModuleCoordinator
from amplifier_modules import context_simple
from amplifier_modules.context_simple.manager import SimpleContextManager
from tests.modules._shared.context.conversations import user


async def test_mount_gives_the_session_a_context():
    coordinator = ModuleCoordinator()
    await context_simple.mount(coordinator, {"max_tokens": 1_000})
    context = coordinator.get("context")
    assert isinstance(context, SimpleContextManager)
    assert context.config.max_tokens == 1_000
    assert context_simple.__amplifier_module_type__ == "context"


async def test_a_mounted_context_learns_from_responses_until_it_is_cleaned_up():
    coordinator = ModuleCoordinator()
    cleanup = await context_simple.mount(coordinator)
    context = coordinator.get("context")
    await context.add_message(user("x" * 4_000))
    for tokens, expected in ((1_500, 1_500), (9_000, 1_500)):
        await context.get_messages_for_request()
        usage = {"input_tokens": tokens, "output_tokens": 1, "total_tokens": tokens + 1}
        await coordinator.hooks.emit("provider:response", {"usage": usage})
        assert await context.get_token_count() == expected
        cleanup()
    assert coordinator.hooks.list_handlers("provider:response") == {"provider:response": []}
