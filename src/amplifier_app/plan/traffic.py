"""What `--record` and `--replay` make of a plan's providers; the work is provider-replay's."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

MODULE = "provider-replay"


class Traffic(NamedTuple):
    """The file, absolute, that traffic with the model goes to or comes from; not both."""

    record: str | None = None
    replay: str | None = None

    def sets(self) -> tuple[str, ...]:
        """What `--set` would be given: a recording's providers in the place of the plan's.

        They are replaced before variables are read, so that no key has to be set.
        """
        if self.replay is None:
            return ()
        entry = {"module": MODULE, "config": {"replay": self.replay}}
        return (f"providers={json.dumps([entry])}",)

    def entries(self) -> list[dict[str, Any]]:
        """What is mounted after the plan's providers, and is no part of the plan that is saved."""
        return [{"module": MODULE, "config": {"record": self.record}}] if self.record else []


NO_TRAFFIC = Traffic()
