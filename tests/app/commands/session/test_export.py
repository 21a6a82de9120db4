"""`amplifier session export|import` as their users meet them."""

import base64
import gzip
import json
import re
import tracemalloc
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import SessionError
from amplifier_app.base.json_text import json_pieces
from amplifier_app.runtime.export.markdown import (
    as_data,
    as_markdown,
    as_trajectory,
    session_markdown,
)
from amplifier_app.runtime.export.parts import (
    Exported,
    Heading,
    build_parts,
    export_session,
    redactor,
)
from amplifier_app.runtime.observers.visibility import Visibility
from amplifier_app.sessions.bundle import write_bundle
from amplifier_app.sessions.fork import fork_session
from amplifier_app.sessions.store import SessionStore
from tests.support import planted
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.images import RED_PNG
from tests.support.plans import mock_plan
from tests.support.thorough import Scale

SECRET = planted.SECRETS["github-classic"]
HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)>\x1b[31m"
MARKDOWN = (
    "**bold** [x](javascript:alert(3)) [y](https://example.com/) ![z](https://example.com/i.png)\n\n"
    "<iframe src='https://example.com'></iframe>\n\n```html\n</pre><script>alert(4)</script>\n```\n"
)
CALL = {"type": "tool_call", "id": "c1", "name": f"bash{HOSTILE}", "input": {"command": HOSTILE}}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    home = tmp_path / "home"
    store = SessionStore(home / "sessions")
    facts = {
        "title": f"Title {HOSTILE} {SECRET}",
        "model": f'm"{HOSTILE}',
        "usage": {"input_tokens": 10, "output_tokens": 5, "total_tokens": 15},
        "spent": {"cost_usd": "0.5", "unpriced": 0},
    }
    saved = store.create("s1", project=f"/p/{HOSTILE}", plan_yaml="x: 1\n", **facts)
    usage = {"usage": {"input_tokens": 10, "output_tokens": 5, "cost_usd": "0.5"}, "model": "m1"}
    saved.append({"role": "system", "content": f"instruction {HOSTILE}"})
    saved.append({"role": "user", "content": f"hello {HOSTILE} {SECRET}"})
    blocks = [{"type": "thinking", "thinking": HOSTILE}, {"type": "text", "text": MARKDOWN}, CALL]
    saved.append({"role": "assistant", "content": blocks, "metadata": usage})
    saved.append({"role": "tool", "tool_call_id": "c1", "content": f"result {HOSTILE}"})
    saved.append({"role": "assistant", "content": "The end."})
    saved.close()
    ids = {"span_id": "a1", "tool_call_id": "c1", "tool_name": HOSTILE, "model": HOSTILE}
    events = [
        ("prompt:submit", 0), ("llm:request", 1), ("llm:response", 3), ("tool:pre", 3),
        ("tool:error", 5), ("tool:pre", 6), ("prompt:complete", 7),
    ]  # fmt: skip
    lines = [
        json.dumps({"ts": f"2026-01-01T00:00:0{second}+00:00", "event": name, "data": ids})
        for name, second in events
    ]
    text = "\n".join([*lines, "{torn", '{"event": "x"}', '{"event": 1, "ts": 2, "data": 3}'])
    (home / "sessions" / "s1" / "events.jsonl").write_text(text)
    child = store.create("s1-x", project="/p", parent="s1", agent=f"reader{HOSTILE}", title="Sub")
    child.append({"role": "user", "content": "task"})
    child.close()
    return home


def session(home: Path, *arguments: str | Path) -> Finished:
    done = run_amplifier("session", *arguments, home=home)
    assert SECRET not in done.stdout
    return done


class Page(HTMLParser):
    """Collects what a browser would act on."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str]] = []
        self.open: list[str] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag not in ("meta", "rect", "path", "br", "hr"):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag


def test_a_page_has_everything_in_it_and_hostile_text_is_inert(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out.html"
    assert session(home, "export", "s1", "--html", "--to", file).code == 0
    text = file.read_text()
    page = Page(text)
    assert page.open == []
    assert not set(page.tags) & {"script", "img", "iframe", "link", "object", "embed", "form"}
    assert not [name for name, _ in page.attributes if name.startswith("on")]
    assert [value for name, value in page.attributes if name in ("href", "src")] == [
        "https://example.com/",
        "https://example.com/i.png",
    ], "an image is a link"
    policy = next(value for _, value in page.attributes if "default-src" in value)
    assert "default-src 'none'" in policy
    assert "script-src" not in policy
    assert "\x1b" not in text
    assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert "<strong>bold</strong>" in text
    assert "Sub-agent reader" in text
    assert SECRET not in text
    assert "prefers-color-scheme: dark" in text


def test_a_page_draws_the_spans_of_each_prompt(home: Path) -> None:
    text = session(home, "export", "s1", "--html").stdout
    bars = re.findall(r'<rect class="(\w+)" x="([\d.]+)" y="\d+" width="([\d.]+)"', text)
    assert [kind for kind, _, _ in bars] == ["model", "failed"]
    (_, first, width), (_, second, _) = bars
    assert float(first) < float(second)
    assert float(first) + float(width) == pytest.approx(float(second), abs=0.2)
    assert "7.0 s · 1 step" in text


def test_a_page_has_the_changed_files_and_the_cost_over_time(tmp_path: Path) -> None:
    home = tmp_path / "home"
    saved = SessionStore(home / "sessions").create("s1", project="/p", plan_yaml="x: 1\n")
    saved.append({"role": "user", "content": "change it"})
    calls = [
        {"type": "tool_call", "id": name, "name": tool, "input": {"file_path": f"{name}.py"}}
        for name, tool in (("<b>", "edit_file"), ("a", "write_file"), ("c", "read_file"))
    ]
    saved.append({"role": "assistant", "content": calls})
    for call in calls:
        saved.append({"role": "tool", "tool_call_id": call["id"], "content": "done"})
    saved.close()
    events = [
        {"ts": f"2026-01-01T00:00:0{second}+00:00", "event": event, "data": data}
        for second, (event, data) in enumerate(
            [
                ("prompt:submit", {}),
                ("llm:request", {"span_id": "a"}),
                ("llm:response", {"span_id": "a", "usage": {"cost_usd": "0.25"}}),
                ("llm:request", {"span_id": "b"}),
                ("prompt:complete", {}),
                ("llm:response", {"span_id": "b", "usage": {"cost_usd": "0.75"}}),
            ]
        )
    ]
    log = home / "sessions" / "s1" / "events.jsonl"
    log.write_text("\n".join(map(json.dumps, events)))
    text = run_amplifier("session", "export", "s1", "--html", home=home).stdout
    assert Page(text).open == []
    assert "2 files changed</summary>\n<ul><li>&lt;b&gt;.py</li><li>a.py</li></ul>" in text
    assert "$1.00 in 4.0 s</summary>" in text
    assert '<path d="M0 80H250.0V60.0H1000.0V0.0"/>' in text


def test_counts_that_no_model_reports_are_left_out(tmp_path: Path) -> None:
    home, huge = tmp_path / "home", 10**400
    saved = SessionStore(home / "sessions").create("s1", project="/p", plan_yaml="x: 1\n")
    counts = {"input_tokens": huge, "output_tokens": 7, "cache_read_tokens": -huge}
    saved.append({"role": "user", "content": "hello"})
    saved.append({"role": "assistant", "content": "hi", "metadata": {"usage": counts}})
    saved.close()
    events = [
        {"ts": f"2026-01-01T00:00:0{second}+00:00", "event": event, "data": data}
        for second, (event, data) in enumerate(
            [
                ("prompt:submit", {}),
                ("llm:request", {"span_id": "a"}),
                ("llm:response", {"span_id": "a", "usage": {"total_tokens": huge}}),
            ]
        )
    ]
    log = home / "sessions" / "s1" / "events.jsonl"
    log.write_text("\n".join(map(json.dumps, events)))
    for kind in ("--html", "--md", "--atif", "--json"):
        done = succeed("session", "export", "s1", kind, home=home)
        # What is stored is exported as data, whatever it is.
        assert (str(huge) in done.stdout) == (kind == "--json")
    done = succeed("session", "cost", "s1", home=home)
    assert "000,000" not in done.stdout


def test_markdown_and_data_have_the_sub_sessions(home: Path) -> None:
    text = session(home, "export", "s1").stdout
    assert text.startswith("# Title <script>")
    assert "# Sub-agent reader" in text
    assert "\x1b" not in text
    assert session(home, "export", "s1", "--md").stdout == text
    data = json.loads(session(home, "export", "s1", "--json").stdout)
    assert data["transcript"][2]["metadata"]["model"] == "m1"
    assert data["transcript"][1]["content"].endswith("[REDACTED:github-pat]")
    assert [one["id"] for one in data["sub_sessions"]] == ["s1-x"]
    assert data["events"][0]["event"] == "prompt:submit"


def test_a_trajectory_follows_the_interchange_format(home: Path) -> None:
    found = json.loads(session(home, "export", "s1", "--atif").stdout)
    assert found["schema_version"] == "ATIF-v1.8"
    assert [step["step_id"] for step in found["steps"]] == [1, 2, 3, 4]
    assert [step["source"] for step in found["steps"]] == ["system", "user", "agent", "agent"]
    step = found["steps"][2]
    assert step["model_name"] == "m1"
    assert step["metrics"] == {"prompt_tokens": 10, "completion_tokens": 5, "cost_usd": 0.5}
    (call,), (result,) = step["tool_calls"], step["observation"]["results"]
    assert call["tool_call_id"] == result["source_call_id"] == "c1"
    assert isinstance(call["arguments"], dict)
    assert found["final_metrics"] == {
        **{"total_prompt_tokens": 10, "total_completion_tokens": 5},
        **{"total_cost_usd": 0.5, "total_steps": 4},
    }
    [spawned] = found["subagent_trajectories"]
    assert (spawned["trajectory_id"], len(spawned["steps"])) == ("s1-x", 1)


def test_the_trajectory_of_a_fork_marks_what_it_took_over(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"})
    (tmp_path / "red.png").write_bytes(RED_PNG)
    for arguments in (
        ("--session", "first", "--attach", "red.png", "one"),
        ("--session", "first", "two"),
        ("--fork", "first", "three"),
    ):
        succeed("run", "-f", plan, *arguments, cwd=tmp_path)
    fork = SessionStore().latest(str(tmp_path))
    original = json.loads(run_amplifier("session", "export", "first", "--atif").stdout)
    assert original["continued_trajectory_ref"] == fork.id
    found = json.loads(run_amplifier("session", "export", fork.id, "--atif").stdout)
    copied = [(step["source"], step.get("is_copied_context", False)) for step in found["steps"]]
    assert copied == [
        *(("user", True), ("user", True), ("agent", True), ("user", True), ("agent", True)),
        *(("user", False), ("agent", False)),
    ]
    assert (found["trajectory_id"], found.get("continued_trajectory_ref")) == (fork.id, None)
    text, image = found["steps"][0]["message"]
    assert text["text"].startswith("[red.png")
    encoded = base64.b64encode(RED_PNG).decode()
    assert image["source"] == {
        "media_type": "image/png",
        "path": f"data:image/png;base64,{encoded}",
    }


def test_a_session_that_went_on_itself_is_not_continued_by_its_fork(tmp_path: Path) -> None:
    plan = mock_plan(tmp_path, [], mock={"on_end": "echo"})
    for how in ("--session", "--fork", "--session"):
        succeed("run", "-f", plan, how, "first", "hi", cwd=tmp_path)
    exported = json.loads(run_amplifier("session", "export", "first", "--atif").stdout)
    assert "continued_trajectory_ref" not in exported


def test_results_of_sub_agents_refer_to_their_trajectories() -> None:
    def result(of: str) -> str:
        return json.dumps({"response": "done", "session_id": of})

    calls = [{**CALL, "id": call_id} for call_id in ("c1", "c2", "c3", "c4")]
    answers = [result("s-1"), result("other"), 'no JSON: "session_id"', '["session_id"]']
    records = [
        {"role": "assistant", "content": calls},
        *(
            {"role": "tool", "tool_call_id": f"c{n}", "content": text}
            for n, text in enumerate(answers, 1)
        ),
    ]
    below = [
        Exported("s-1", {"parent": "s", "agent": "reader"}, records[:1], []),
        Exported("s-1-1", {"parent": "s-1"}, [{"role": "user", "content": "task"}], []),
        Exported("s-2", {"parent": "s"}, [], []),
    ]
    found = as_trajectory(Exported("s", {}, records, [], tuple(below)))
    [step] = found["steps"]
    references = [one.get("subagent_trajectory_ref") for one in step["observation"]["results"]]
    assert references == [[{"trajectory_id": "s-1"}], None, None, None]
    [reader] = found["subagent_trajectories"]  # a session without messages has no trajectory
    assert (reader["trajectory_id"], reader["agent"]["extra"]) == ("s-1", {"role": "reader"})
    assert [one["trajectory_id"] for one in reader["subagent_trajectories"]] == ["s-1-1"]
    with pytest.raises(SessionError, match="session s-2 has no messages"):
        as_trajectory(below[2])


def test_long_sessions_are_exported_piece_by_piece(tmp_path: Path, scale: Scale) -> None:
    """Of a long conversation little more than a message is in memory, and no secret is left in it."""
    turns = scale(30, 500)
    store, token = SessionStore(tmp_path), planted.SECRETS["github-classic"]
    saved = store.create("long", project="/")
    saved.close()
    text = f"{'some words ' * 900}use {token}"
    turn: list[dict[str, Any]] = [
        {"role": "user", "content": text},
        {"role": "assistant", "content": [{"type": "text", "text": text}, CALL]},
        {"role": "tool", "tool_call_id": CALL["id"], "content": text},
        {"role": "assistant", "content": text},
    ]
    lines = "".join(json.dumps(record) + "\n" for record in turn)
    (saved.path / "transcript.jsonl").write_text(lines * turns)
    found = store.find("long")
    heading = Heading("long")
    written = {
        "show": lambda: as_markdown(heading, build_parts(found.conversation(), Visibility())),
        "messages": lambda: json_pieces({"messages": found.records().messages()}),
        "md": lambda: session_markdown(export_session(found, [], redactor().value)),
        "json": lambda: json_pieces(as_data(export_session(found, [], redactor().value))),
        "atif": lambda: json_pieces(as_trajectory(export_session(found, [], redactor().value))),
        "fork": lambda: [str(fork_session(store, found, step=2 * turns - 1).conversation().size)],
        "bundle": lambda: [str(write_bundle(tmp_path / "b", [found], redactor().value, "1"))],
    }
    for name, pieces in written.items():
        size = count = 0
        tracemalloc.start()
        for piece in pieces():
            size += len(piece)
            count += piece.count(token)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        assert peak < (1_600_000 if name == "bundle" else 600_000), (name, peak)
        assert size > (27_000 * turns if name not in ("fork", "bundle") else 1), name
        assert (count > 0) == (name in ("show", "messages")), name
    assert b"REDACTED" in gzip.decompress((tmp_path / "b").read_bytes())
    assert token.encode() not in gzip.decompress((tmp_path / "b").read_bytes())


@pytest.mark.parametrize(
    ("name", "begin"),
    [
        ("a.html", b"<!doctype html>"),
        ("a.JSON", b"{"),
        ("a.tar.gz", b"\x1f\x8b"),
        ("a.tgz", b"\x1f\x8b"),
        ("a.md", b"# "),
        ("a.txt", b"# "),
    ],
)
def test_the_name_of_the_file_selects_the_form(
    home: Path, tmp_path: Path, name: str, begin: bytes
) -> None:
    done = session(home, "export", "s1", "--to", tmp_path / name)
    assert done.code == 0, done.stderr
    assert (tmp_path / name).read_bytes().lower().startswith(begin)
    assert session(home, "export", "s1", "--md", "--to", tmp_path / f"md-{name}").code == 0
    assert (tmp_path / f"md-{name}").read_bytes().startswith(b"# ")


def test_files_are_never_overwritten(home: Path, tmp_path: Path) -> None:
    file = tmp_path / "out"
    file.write_text("mine")
    for kind in ("--html", "--bundle"):
        done = session(home, "export", "s1", kind, "--to", file)
        assert done.code in (2, 6)
        assert "already exists" in done.stderr
    assert file.read_text() == "mine"
    assert session(home, "export", "s1", "--bundle").code == 2
    assert session(home, "export", "s1", "--md", "--json").code == 2


def test_a_bundle_is_imported_elsewhere_and_asks_for_a_plan(home: Path, tmp_path: Path) -> None:
    file, other = tmp_path / "s1.tar.gz", tmp_path / "other"
    assert session(home, "export", "s1", "--bundle", "--to", file).code == 0
    done = session(other, "import", file)
    assert (done.code, done.stdout) == (0, "s1\n")
    assert "with 1 sub-session" in done.stderr
    assert "hello" in session(other, "show", "s1").stdout
    resumed = run_amplifier("run", "--resume", "s1", "go on", home=other)
    assert resumed.code == 6
    assert "was imported and can run code" in resumed.stderr
    assert "imported-plan.yaml" in resumed.stderr
    again = session(other, "import", file)
    assert (again.code, again.stdout) == (6, "")
    copied = json.loads(session(other, "import", file, "--new-ids", "--output", "json").stdout)
    assert len(copied["sub_sessions"]) == 1
