"""One prompt in several folders at once, with the tool calls of each: python folders.py PLAN PROMPT FOLDER..."""

import asyncio
import sys
from functools import partial

from amplifier_app import api

if len(sys.argv) < 4:
    sys.exit(__doc__)


def show(folder: str, event: api.Event) -> None:
    if event["type"] == "tool_start":
        print(f"{folder}: {event['name']} {event['input']}", file=sys.stderr)


async def main() -> None:
    plan_file, prompt, *folders = sys.argv[1:]
    plan = api.load_plan(plan_file)
    answers = await asyncio.gather(
        *(
            api.run(plan, prompt, workdir=folder, on_event=partial(show, folder))
            for folder in folders
        )
    )
    for folder, answer in zip(folders, answers, strict=True):
        print(f"{folder}: {answer.text if answer.is_ok else answer.error}")


try:
    asyncio.run(main())
except api.AppError as error:  # No prompt could be sent: no such plan, folder, module …
    sys.exit(f"error: {error}")
