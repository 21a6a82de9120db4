"""Two prompts in one session; the second answer is printed as it comes: python conversation.py PLAN"""

import asyncio
import sys

from amplifier_app import api

if len(sys.argv) != 2:
    sys.exit(__doc__)


async def main() -> None:
    async with api.open_session(api.load_plan(sys.argv[1])) as session:
        await session.run("Choose a word of five letters and say it.")
        async for event in session.stream("Say it backwards."):
            if event["type"] == "text":
                print(event["delta"], end="", flush=True)
            elif event["type"] == "tool_start":
                print(f"\n[{event['name']}]", file=sys.stderr)
        print(f"\nContinue with: amplifier run --resume {session.id}")


try:
    asyncio.run(main())
except api.AppError as error:  # No prompt could be sent: no such plan, folder, module …
    sys.exit(f"error: {error}")
