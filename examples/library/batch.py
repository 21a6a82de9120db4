"""Many rows in worker processes; the same call again continues the batch: python batch.py PLAN FOLDER"""

import asyncio
import sys

from amplifier_app import api

if len(sys.argv) != 3:
    sys.exit(__doc__)


async def main() -> None:
    plan = api.load_plan(sys.argv[1])
    rows = [{"id": f"n{number}", "number": number} for number in range(5)]
    prompt = "What is {{number}} squared?"
    async for row in api.batch(plan, rows, folder=sys.argv[2], prompt=prompt, workers=4):
        print(f"{row.id}: {row.answer.text if row.answer.is_ok else row.answer.error}")


try:
    asyncio.run(main())
except api.AppError as error:  # It cannot begin, or it stopped early.
    sys.exit(f"error: {error}")
