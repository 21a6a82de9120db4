"""Ask one question: python ask.py PLAN QUESTION"""

import asyncio
import sys

from amplifier_app import api

if len(sys.argv) != 3:
    sys.exit(__doc__)


async def main() -> int:
    plan = api.load_plan(sys.argv[1])
    answer = await api.run(plan, sys.argv[2], timeout=300)
    print(answer.text if answer.is_ok else f"{answer.outcome}: {answer.error}")
    return answer.exit_code


try:
    sys.exit(asyncio.run(main()))
except api.AppError as error:  # No prompt could be sent: no such plan, folder, module …
    sys.exit(f"error: {error}")
