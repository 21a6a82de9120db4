"""Writing the answer: together what arrives together, in order, and never later than anything else."""

import asyncio
import os
import subprocess
import sys

import pytest

from amplifier_app.base.stdio import Output, claim_stdout
from amplifier_app.render.text import TextRenderer

START = {"block_type": "text", "block_index": 0}


def delta(text: str) -> tuple[str, dict[str, object]]:
    return "content_block:delta", {**START, "delta": text}


async def test_texts_of_one_round_of_the_loop_are_written_before_the_next() -> None:
    reading, writing = os.pipe()
    output = Output(writing)
    for text in ("one ", "two ", "three"):
        assert output.write_later(text, asyncio.get_running_loop)
    os.set_blocking(reading, False)
    with pytest.raises(BlockingIOError):
        os.read(reading, 100)
    await asyncio.sleep(0)
    assert os.read(reading, 100) == b"one two three"
    output.write_later("four ", asyncio.get_running_loop)
    output.write("five")
    assert os.read(reading, 100) == b"four five"
    os.close(reading)
    output.write_later("six", asyncio.get_running_loop)
    await asyncio.sleep(0)
    assert not output.write_later("seven", asyncio.get_running_loop)
    assert isinstance(output.failure, BrokenPipeError)
    os.close(writing)


async def test_an_answer_comes_before_notes_and_the_end_of_its_block() -> None:
    reading, writing = os.pipe()
    renderer = TextRenderer(Output(writing), quiet=True, stream=True)
    handlers = renderer.handlers()
    handlers["provider:request"]("provider:request", {})
    for end in ("content_block:end", None):
        event, data = delta("text")
        handlers[event](event, data)
        if end is None:
            renderer.notice("a note", "warning", "test")
        else:
            handlers[end](end, START)
        os.set_blocking(reading, False)
        assert os.read(reading, 100) == b"text"
    os.close(reading)
    os.close(writing)


async def test_nothing_is_kept_back_at_the_end() -> None:
    reading, writing = os.pipe()
    before = os.dup(1)
    os.dup2(writing, 1)
    try:
        with claim_stdout() as output:
            output.write_later("kept", asyncio.get_running_loop)
    finally:
        os.dup2(before, 1)
    assert os.read(reading, 100) == b"kept"
    for descriptor in (before, reading, writing):
        os.close(descriptor)


def test_texts_printed_while_the_rules_for_secrets_are_loaded_appear_later() -> None:
    program = """
import sys
from amplifier_app.base.stdio import open_standard_streams

class Finder:
    def find_spec(self, name, path=None, target=None):
        if name == "amplifier_support.secret_shapes":
            print("a warning with the key", "sk-ant-" + "a1B2c3D4" * 6, file=sys.stderr)

open_standard_streams()
sys.meta_path.insert(0, Finder())
import amplifier_support.redaction
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    assert done.stderr.startswith("a warning with the key [REDACTED")


def test_texts_of_several_threads_on_stderr_appear_once_each() -> None:
    program = """
import sys, threading
from amplifier_app.base.stdio import open_standard_streams

def write(name):
    for number in range(1000):
        sys.stderr.write(f"line {number} of {name}\\n")

open_standard_streams()
sys.setswitchinterval(1e-6)
threads = [threading.Thread(target=write, args=(name,)) for name in "abcd"]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0
    expected = [f"line {number} of {name}" for name in "abcd" for number in range(1000)]
    assert sorted(done.stderr.splitlines()) == sorted(expected)
