"""The program with a model that answers with anything: one clear error or a valid answer.

After each answer the session is resumed, shown and exported, and the server, which is strict, accepts
every request. A failure names the case or the seed: `CASES[...]` or `random_reply(seed)` plays it again.
"""

import random
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from tests.support.cli import Finished, run_amplifier
from tests.support.llm.hostile import CASES, TRANSPORT, random_reply
from tests.support.llm_server import Item, ScriptedLLM
from tests.support.thorough import Scale

APIS = ("anthropic", "chat", "responses")
KEYS = {"ANTHROPIC_API_KEY": "test-key", "OPENAI_API_KEY": "test-key"}

ANSWERED = {0, 5, 7, 75, 78}
"""Exit codes of a prompt: an answer, a wrong one, one that was cut off, none now, a wrong address."""

_NOT_FOR_USERS = re.compile(
    r"Traceback|[A-Za-z]+Error[:(]| raised |[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]"
)

# One for each mechanism; a thorough run has all of them.
SOME_CASES = (
    "input: nested 970 deep",
    "text with control characters",
    "usage: huge",
    "tool name: control characters",
    "event: nested 100,000 deep",
    "signature: object",
)
SOME_TRANSPORT = ("endless headers", "nested error")


def plan_for(api: str, server: ScriptedLLM) -> str:
    url, module = server.openai_base_url, "provider-openai"
    model = f"model: m, api: {api}"
    if api == "anthropic":
        url, module, model = server.base_url, "provider-anthropic", "model: claude-sonnet-5-5"
    return (
        "session: {orchestrator: loop-streaming, context: context-simple}\n"
        f"providers:\n  - module: {module}\n"
        f"    config: {{base_url: '{url}', {model}, max_retries: 0, idle_timeout: 10}}\n"
        "tools: [{module: tool-filesystem}]\nhooks: [{module: hooks-logging}]\n"
    )


def problems(folder: Path, api: str, item: Item) -> list[str]:
    """What went wrong in a session whose first answer is `item`; empty is the promise."""
    found: list[str] = []
    folder.mkdir()
    (folder / "a.txt").write_text("A")

    def run(*arguments: str, codes: set[int]) -> Finished:
        done = run_amplifier(*arguments, home=folder / "home", cwd=folder, env=KEYS, timeout=60)
        # An answer of 10 MB is in stdout; what a crash writes is at the ends.
        text = f"{done.stdout[-100_000:]}{done.stderr[:100_000]}{done.stderr[-100_000:]}"
        if done.code not in codes or _NOT_FOR_USERS.search(text):
            found.append(f"{arguments[:3]}: exit {done.code}, {text[-1500:]!r}")
        return done

    with ScriptedLLM.running([item, "Recovered.", "Still here."], repeat_last=True) as server:
        plan = folder / "plan.yaml"
        plan.write_text(plan_for(api, server))
        run("run", "-f", str(plan), "--session", "s1", "go", codes=ANSWERED)
        resumed = run("run", "--resume", "s1", "again", codes={0})
        if resumed.stdout not in ("Recovered.\n", "Still here.\n"):
            found.append(f"the answer after it is {resumed.stdout!r}")
        for command in ("show", "export", "verify"):
            run("session", command, "s1", codes={0})
        found += [f"rejected: {why}" for why in server.rejections]
    return found


def check(folder: Path, items: dict[str, Item], apis: tuple[str, ...]) -> None:
    """Play every item over every API, two at a time; fails with all that went wrong."""
    jobs = [(name, api) for name in items for api in apis]

    def play(number: int) -> list[str]:
        name, api = jobs[number]
        return [f"{api}, {name}: {p}" for p in problems(folder / str(number), api, items[name])]

    with ThreadPoolExecutor(2) as pool:
        found = [problem for each in pool.map(play, range(len(jobs))) for problem in each]
    assert not found, "\n".join(found)


def test_hostile_answers_end_in_an_answer_or_a_clear_error(tmp_path: Path, scale: Scale) -> None:
    # Each case over one of the APIs; tests/modules/test_hostile_answers.py mixes all of them.
    names = scale(SOME_CASES, tuple(CASES))
    for number, api in enumerate(APIS):
        (folder := tmp_path / api).mkdir()
        check(folder, {name: CASES[name] for name in names[number::3]}, (api,))


def test_hostile_transports_end_in_a_clear_error(tmp_path: Path, scale: Scale) -> None:
    names = scale(SOME_TRANSPORT, tuple(TRANSPORT))
    check(tmp_path, {name: TRANSPORT[name] for name in names}, ("chat",))


def test_random_answers_end_in_an_answer_or_a_clear_error(tmp_path: Path, scale: Scale) -> None:
    start = scale(0, random.randrange(10**6))
    seeds = range(start, start + scale(1, 15))
    check(tmp_path, {f"random_reply({seed})": random_reply(seed) for seed in seeds}, APIS)
