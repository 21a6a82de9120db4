"""Fifty sessions at once in one process: python many.py PLAN"""

import asyncio
import sys

from amplifier_app import api

if len(sys.argv) != 2:
    sys.exit(__doc__)


async def main() -> None:
    plan = api.load_plan(sys.argv[1])
    prompts = [f"What is {number} squared?" for number in range(50)]
    answers = await asyncio.gather(*(api.run(plan, prompt, save=False) for prompt in prompts))
    for prompt, answer in zip(prompts, answers, strict=True):
        print(f"{prompt} {answer.text if answer.is_ok else answer.error}")


try:
    asyncio.run(main())
except api.AppError as error:  # No prompt could be sent: no such plan, folder, module …
    sys.exit(f"error: {error}")
