"""What the HTTP clients of provider-anthropic cost, as the table in its README.

python -m tests.bench.anthropic_clients

Each figure is the least of five processes: CPU seconds without the server, and without the imports that
every client needs.
"""

import asyncio
import json
import re
import subprocess
import sys
import time
from typing import Any

from tests.support.llm_server import Reply, ScriptedLLM

CLIENTS = {"builtin": "`builtin`", "httpx": "the same over httpx", "sdk": "`sdk`"}
DELTAS = 20_000
PROCESSES = 5


def measure(client: str, url: str) -> dict[str, float]:
    """Run a process with this client; see `use`."""
    command = [sys.executable, "-m", "tests.bench.anthropic_clients", client, url]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE)
    return json.loads(done.stdout)


def main(deltas: int = DELTAS, processes: int = PROCESSES) -> None:
    """Print the table."""
    replies = [Reply("ready"), Reply("word " * deltas, deltas=deltas)] * len(CLIENTS) * processes
    with ScriptedLLM.running(replies) as server:
        costs = {
            name: [measure(name, server.base_url) for _ in range(processes)] for name in CLIENTS
        }
    print(f"| `client` | one request | {deltas:,} deltas |\n|---|---|---|")
    for name, label in CLIENTS.items():
        one, stream = (min(cost[key] for cost in costs[name]) for key in ("one", "stream"))
        print(f"| {label} | {one:.2f} s | {stream:.2f} s |")


async def use(client: str, url: str) -> None:
    """Print the CPU seconds of the first request and of a long stream."""
    from amplifier_core.testing import MockCoordinator
    from amplifier_modules.provider_anthropic import mount
    from amplifier_modules.provider_anthropic import provider as code

    assert code  # imported, as its cost is no client's
    if client == "httpx":
        from amplifier_modules._shared.http import connections

        # No address has a plain form.
        connections._PLAIN_NETLOC = re.compile("-")
    started = time.process_time()
    coordinator = MockCoordinator()
    config: dict[str, Any] = {"api_key": "test-key", "base_url": url}
    await mount(coordinator, {**config, "client": "sdk" if client == "sdk" else "builtin"})
    provider = coordinator.get("providers", "anthropic")
    request = {"messages": [{"role": "user", "content": "hi"}]}
    await provider.complete(request)
    one = time.process_time()
    async for _ in provider.stream_complete(request):
        pass
    print(json.dumps({"one": one - started, "stream": time.process_time() - one}))


if __name__ == "__main__":
    if len(sys.argv) == 3:
        asyncio.run(use(*sys.argv[1:]))
    else:
        main()
