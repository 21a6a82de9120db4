import pytest

from amplifier_extras.loop_events.turn import EventsOrchestrator
from amplifier_modules._shared.loop.turn import LoopOrchestrator
from amplifier_modules.loop_basic.orchestrator import BasicOrchestrator
from amplifier_modules.loop_streaming.orchestrator import StreamingOrchestrator
from tests.modules._shared.loop.rig import Rig

LOOPS = {"basic": BasicOrchestrator, "events": EventsOrchestrator}
"""One that waits for whole answers and one that streams; how loop-streaming streams is in `test_streaming.py`."""


@pytest.fixture(params=LOOPS.values(), ids=LOOPS)
def rig(request: pytest.FixtureRequest) -> Rig:
    """The same session for each of these loops."""
    kind: type[LoopOrchestrator] = request.param
    return Rig(kind)


@pytest.fixture
def streaming_rig() -> Rig:
    return Rig(StreamingOrchestrator)
