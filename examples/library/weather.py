"""Offer a function as a tool, and get an object: python weather.py PLAN CITY"""

import sys
from dataclasses import dataclass

from amplifier_app import api


@dataclass
class Forecast:
    city: str
    degrees: int


def weather(city: str) -> str:
    """Return today's weather in a city."""
    return f"Sunny in {city}, 21 degrees."


if len(sys.argv) != 3:
    sys.exit(__doc__)
try:
    plan = api.load_plan(sys.argv[1], functions=[weather])
    answer = api.run_sync(plan, f"What is the weather in {sys.argv[2]}?", answer_type=Forecast)
except api.AppError as error:  # No prompt could be sent: no such plan, folder, module …
    sys.exit(f"error: {error}")
print(answer.data if answer.is_ok else answer.error)
sys.exit(answer.exit_code)
