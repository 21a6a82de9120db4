"""Modules whose behaviour is not that of their kind."""

from __future__ import annotations

from tests.app.commands.module.validation.corpus.case import BEHAVIOUR, Case

SUITE = [
    Case(
        "a tool that answers with a text",
        "tool",
        (
            (
                'return ToolResult(success=False, error={"message": "text is required"})',
                "return 'no'",
            ),
        ),
        "execute_returns_tool_result",
        "the return value of execute() is str, not ToolResult",
        "return ToolResult(output=…)",
        BEHAVIOUR,
    ),
    Case(
        "a tool that trips over missing input",
        "tool",
        (('text = input.get("text")', 'text = input["text"]'),),
        "invalid_input_returns_error_result",
        "empty input is not handled: KeyError: 'text'",
        "check required input first",
        BEHAVIOUR,
    ),
    Case(
        "a tool that raises",
        "tool",
        (('text = input.get("text")', 'raise OSError("no disk")'),),
        "execute_returns_tool_result",
        "OSError: no disk (amplifier_module_thing/__init__.py, line 17, in execute)",
        "on every path of execute()",
        BEHAVIOUR,
    ),
    Case(
        "a tool that hangs",
        "tool",
        (('text = input.get("text")', 'import time\n        time.sleep(600)\n        text = ""'),),
        "time",
        "during execute_returns_tool_result and was stopped; it was at "
        "amplifier_module_thing/__init__.py, line 18, in execute",
        "give every wait a time limit",
        {"behavioral": True, "seconds": 6},
    ),
    Case(
        "models in a dict",
        "provider",
        (("return [ModelInfo(", "return {}\n        return [ModelInfo("),),
        "list_models_returns_list",
        "the return value of list_models() is dict, not list",
        "return a list of ModelInfo",
        BEHAVIOUR,
    ),
    Case(
        "tool calls that are None",
        "provider",
        (("return list(response.tool_calls or ())", "return response.tool_calls"),),
        "parse_tool_calls_returns_list",
        "the return value of parse_tool_calls() is NoneType, not list",
        "return list(response.tool_calls or ())",
        BEHAVIOUR,
    ),
    Case(
        "tool calls that get lost",
        "provider",
        (("return list(response.tool_calls or ())", "return list(response.tool_calls or ())[:1]"),),
        "parses_tool_calls",
        "does not return the calls of a response in order",
        "return list(response.tool_calls or ())",
        BEHAVIOUR,
    ),
    Case(
        "an unknown window",
        "provider",
        (('"max_output_tokens": 1000', '"max_output": 1000'),),
        "window",
        "max_output_tokens missing in the defaults of get_info()",
        "in tokens",
        BEHAVIOUR,
        "warning",
    ),
    Case(
        "a hook that raises",
        "hook",
        (('    return HookResult(action="continue")', '    return data["tool_input"]["command"]'),),
        "handlers",
        "on tool:pre it raised KeyError: 'command' (amplifier_module_thing/__init__.py, line 8",
        "a handler that raises is skipped",
        BEHAVIOUR,
    ),
    Case(
        "a hook that answers True",
        "hook",
        (('    return HookResult(action="continue")', "    return True"),),
        "handlers",
        "on tool:pre it returned bool, not a HookResult",
        "denies the event",
        BEHAVIOUR,
    ),
    Case(
        "a hook that hears nothing",
        "hook",
        (('return coordinator.hooks.register("tool:pre", watch, name="watch")', "return None"),),
        "handlers",
        "it registers no handlers",
        "register one",
        BEHAVIOUR,
        "warning",
    ),
    Case(
        "an orchestrator that returns the response",
        "orchestrator",
        (("        return text", "        return response"),),
        "execute_returns_string",
        "the return value of execute() is ChatResponse, not str",
        "return the text of the provider's last answer",
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator that calls no provider",
        "orchestrator",
        (
            (
                "response = await provider.complete",
                'return "Hello"\n            response = await provider.complete',
            ),
        ),
        "orchestrator_uses_provider",
        "execute() did not await complete() of the provider",
        "call provider.complete(request)",
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator without a final event",
        "orchestrator",
        (('"orchestrator:complete"', '"orchestrator:done"'),),
        "orchestrator:complete",
        "the event is not emitted",
        'await hooks.emit("orchestrator:complete"',
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator with an incomplete final event",
        "orchestrator",
        ((', "turn_count": turns, "status": "success"', ""),),
        "orchestrator:complete",
        "the event is missing status, turn_count",
        'await hooks.emit("orchestrator:complete"',
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator that leaves calls open",
        "orchestrator",
        (
            (
                "                if tool is None:\n",
                "                if tool is None:\n                    continue\n                if tool is None:\n",
            ),
        ),
        "tool_calls",
        "1 of 2 tool calls got no result in the context",
        "for each call run the tool, or give the reason why not",
        BEHAVIOUR,
        "warning",
    ),
    Case(
        "an orchestrator that stores what hooks inject between a call and its result",
        "orchestrator",
        (
            (
                "                await context.add_message(\n                    {\n",
                '                done = await hooks.emit("tool:post", {"tool_name": call.name})\n'
                '                if kwargs and done.action == "inject_context":\n'
                '                    await kwargs["coordinator"].process_hook_result(done, "tool:post")\n'
                "                await context.add_message(\n                    {\n",
            ),
        ),
        "injections",
        "text that a hook injected on a tool event is stored between a call and its result",
        "process them after the last result",
        BEHAVIOUR,
        severity="warning",
    ),
    Case(
        "a misspelt field of a result on a path that is not run",
        "tool",
        (
            (
                "        return ToolResult(output=text.upper())\n",
                "        if text == 'x':\n            return ToolResult(sucess=False, output=text)\n        return ToolResult(output=text.upper())\n",
            ),
        ),
        "model_fields",
        "ToolResult has no field 'sucess' and ignores it; did you mean 'success'?",
        "correct the name",
        BEHAVIOUR,
        severity="warning",
    ),
    *(
        Case(
            f"a handler whose result has no effect: {said}",
            "hook",
            (
                (
                    '    return HookResult(action="continue")\n',
                    f"    return HookResult({arguments})\n",
                ),
            ),
            "hook_results",
            f"on tool:pre it returned {said}",
            "contracts/hook.md",
            BEHAVIOUR,
            severity="warning",
        )
        for arguments, said in (
            ('action="modify"', "'modify' without data, which changes nothing"),
            ('action="inject_context"', "'inject_context' without context_injection, which adds"),
            ('user_message="Look here"', "a user_message with 'continue', which is not shown"),
        )
    ),
    Case(
        "a tool that blocks the event loop",
        "tool",
        (
            (
                "    async def execute(self, input):\n",
                "    async def execute(self, input):\n"
                "        import time; time.sleep(2.5 if not input else 0)\n",
            ),
        ),
        "blocking",
        "it blocked the event loop for ",
        "await asyncio.to_thread(…)",
        BEHAVIOUR,
        severity="warning",
    ),
    Case(
        "a tool that raises KeyboardInterrupt",
        "tool",
        (
            (
                "    async def execute(self, input):\n",
                "    async def execute(self, input):\n        raise KeyboardInterrupt\n",
            ),
        ),
        "behavior",
        "the suite was aborted: KeyboardInterrupt (amplifier_module_th",
        "do not raise KeyboardInterrupt",
        BEHAVIOUR,
    ),
    Case(
        "an orchestrator that fails with tools",
        "orchestrator",
        (("result = await tool.execute(call.arguments)", "result = await tool.call()"),),
        "tool_calls",
        "it raised AttributeError: 'MockTool' object has no attribute 'call' (amplifier_module_th",
        "contracts/orchestrator.md of amplifier_core",
        BEHAVIOUR,
    ),
    Case(
        "a context that gives None",
        "context",
        (("        return list(self.messages)\n", "        return list(self.messages) or None\n"),),
        "get_messages_never_returns_none",
        "get_messages() returned None",
        "[] if there are no messages",
        BEHAVIOUR,
    ),
    Case(
        "a context that turns messages round",
        "context",
        (("self.messages.append(message)", "self.messages.insert(0, message)"),),
        "multiple_messages",
        "get_messages() returned ['third', 'second', 'first']",
        "in the order they were added",
        BEHAVIOUR,
    ),
    Case(
        "a context that flattens",
        "context",
        (
            (
                "self.messages.append(message)",
                'self.messages.append({**message, "content": str(message.get("content"))} if message else message)',
            ),
        ),
        "fidelity",
        "messages are not returned as they were added",
        "whole blocks, thinking with its signature",
        BEHAVIOUR,
    ),
    Case(
        "a context that tears pairs apart",
        "context",
        (
            (
                "        return [message for turn in turns for message in turn]",
                "        view = [message for turn in turns for message in turn]\n        return view[1:] if token_budget else view",
            ),
            ('if message.get("role") == "user"', 'if message.get("role") == "tool"'),
        ),
        "view",
        "has calls without results, or results without calls",
        "keep an assistant's tool calls and their results together",
        BEHAVIOUR,
    ),
    Case(
        "a context that forgets for good",
        "context",
        (
            (
                "        return [message for turn in turns for message in turn]",
                "        self.messages = [message for turn in turns for message in turn]\n        return list(self.messages)",
            ),
        ),
        "view",
        "building a view within the budget changed the stored messages",
        "compact a copy",
        BEHAVIOUR,
    ),
    Case(
        "a context that does not compact",
        "context",
        (("while token_budget and", "while False and"),),
        "view",
        "token_budget makes no difference",
        "leave out the oldest turns",
        BEHAVIOUR,
        "warning",
    ),
]
