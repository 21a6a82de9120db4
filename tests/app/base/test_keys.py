"""Stored keys: for their owner alone, never lost, never seen, and used like variables that are set."""

import json
import os
import stat
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from amplifier_app.base.errors import ConfigError
from amplifier_app.base.keys import Address, Environment, KeyStore, environment, fill_environment
from tests.support.cli import run_amplifier, run_python, start_python, succeed
from tests.support.llm_server import Reply, ScriptedLLM, ToolCall
from tests.support.small_disk import file_size_limit
from tests.support.terminal import Terminal

KEY = "sk-stored-0123456789abcdef"
BACKEND = Path(__file__).parents[2] / "support" / "keyring_backend"


@pytest.fixture
def store(tmp_path: Path) -> KeyStore:
    return KeyStore(tmp_path / "keys")


@pytest.fixture
def keyring_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The entries of the keyring, which child processes use from now on."""
    file = tmp_path / "keyring.json"
    monkeypatch.setenv("PYTHON_KEYRING_BACKEND", "file_keyring.FileKeyring")
    monkeypatch.setenv("FILE_KEYRING", str(file))
    monkeypatch.setenv("PYTHONPATH", str(BACKEND))
    return file


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def entry(value: Any = KEY, where: str = "file", **more: Any) -> dict[str, Any]:
    return {"version": 1, "keys": {"ANTHROPIC_API_KEY": {"where": where, "value": value, **more}}}


HEAD = "import os, sys\nfrom amplifier_app.base.keys import *\nstore = KeyStore()\n"


def child(code: str, *arguments: str, **options: Any) -> subprocess.CompletedProcess[str]:
    """Runs `code`, which has `store` of the home and `arguments`, in a process of its own."""
    return run_python(HEAD + code, *arguments, **options)


# -- the file --------------------------------------------------------------------------------


@pytest.mark.parametrize("umask", [0o000, 0o777])
def test_only_the_owner_can_read_it_whatever_the_umask(tmp_path: Path, umask: int) -> None:
    store = KeyStore(tmp_path / "home" / "keys")
    before = os.umask(umask)
    try:
        store.store("ANTHROPIC_API_KEY", KEY)
        store.store("OPENAI_API_KEY", KEY + "2")
    finally:
        os.umask(before)
    assert mode(store.folder) == 0o700
    for file in store.folder.iterdir():
        assert mode(file) == 0o600, file
    assert store.read("ANTHROPIC_API_KEY") == KEY
    assert store.names() == {"ANTHROPIC_API_KEY": ("file", None), "OPENAI_API_KEY": ("file", None)}


def test_modes_that_were_loosened_are_tightened_when_something_is_stored(store: KeyStore) -> None:
    store.store("A_KEY", KEY)
    store.folder.chmod(0o755)
    store.file.chmod(0o644)
    store.store("B_KEY", KEY)
    assert (mode(store.folder), mode(store.file)) == (0o700, 0o600)


def test_without_a_keyring_the_note_gives_the_reason_for_the_file(store: KeyStore) -> None:
    stored = store.store("A_KEY", KEY)
    assert stored.where == "file"
    assert stored.note == "the system has no keyring"


def test_a_key_can_be_replaced_and_forgotten(store: KeyStore) -> None:
    store.store("A_KEY", KEY)
    store.store("B_KEY", "other")
    store.store("A_KEY", "new")
    assert store.read("A_KEY") == "new"
    assert store.forget("A_KEY")
    assert not store.forget("A_KEY")
    assert store.names() == {"B_KEY": ("file", None)}
    assert KEY not in store.file.read_text()
    with pytest.raises(KeyError):
        store.read("A_KEY")


def test_invalid_names_and_keys_are_refused_and_not_repeated(store: KeyStore) -> None:
    for name in ("", "1A", "A-B", "A\n"):
        with pytest.raises(ConfigError, match="not a valid variable name"):
            store.store(name, KEY)
    for value in ("", "two words", "line\nbreak", "ключ", "a\x00b"):
        with pytest.raises(ConfigError) as refused:
            store.store("A_KEY", value)
        assert not value or value not in str(refused.value)
    assert not store.file.exists()


DAMAGED = {
    "empty": b"",
    "cut off": json.dumps(entry()).encode()[:-9],
    "no JSON": b"ANTHROPIC_API_KEY=" + KEY.encode(),
    "NUL bytes": b"\0" * 64,
    "no UTF-8": b'{"version": 1, "keys": {"\xff": 1}}',
    "a list": b"[]",
    "no version": b'{"keys": {}}',
    "no keys": b'{"version": 1}',
    "keys are a list": b'{"version": 1, "keys": []}',
    "a bad name": json.dumps({"version": 1, "keys": {"A B": entry()["keys"]}}).encode(),
    "a bad place": json.dumps(entry(where="cloud")).encode(),
    "a long number": b'{"version": ' + b"9" * 5_000 + b"}",
    "a number": json.dumps(entry(value=5)).encode(),
    "an address that is none": json.dumps(entry(address="https://h")).encode(),
    "an address without its variable": json.dumps(entry(address={"url": "https://h"})).encode(),
    "a bad variable": json.dumps(entry(address={"variable": "A=B", "url": "https://h"})).encode(),
    "a line break": json.dumps(entry(value=KEY + "\nPATH=/evil")).encode(),
    "deeply nested": b"[" * 100_000,
    "huge": b" " * (1 << 20) + json.dumps(entry()).encode(),
}


def test_a_damaged_file_is_reported_and_never_overwritten(home: Path) -> None:
    file = home / "keys" / "keys.json"
    file.parent.mkdir(parents=True)
    uses: list[Callable[[KeyStore], object]] = [
        lambda store: store.read("A_KEY"),
        lambda store: store.store("A_KEY", KEY),
        lambda store: store.forget("A_KEY"),
    ]
    for name, data in DAMAGED.items():
        file.write_bytes(data)
        file.chmod(0o600)
        for use in uses:
            with pytest.raises(ConfigError, match="damaged") as refused:
                use(KeyStore())
            problem = refused.value
            assert str(file) in str(problem.location), name
            assert "amplifier init" in (problem.hint or ""), name
            assert KEY not in f"{problem}{problem.hint}", name
        assert file.read_bytes() == data, name
    done = run_amplifier("run", "--profile", "mock", "hi")
    assert done.code == 78
    assert str(file) in done.stderr
    assert "amplifier init" in done.stderr


def test_a_file_of_a_newer_version_is_left_alone(home: Path) -> None:
    file = home / "keys" / "keys.json"
    file.parent.mkdir(parents=True)
    file.write_text('{"version": 2, "vault": {}}')
    file.chmod(0o600)
    for use in (environment, lambda: KeyStore().store("A_KEY", KEY)):
        with pytest.raises(ConfigError, match="newer version"):
            use()
    assert "vault" in file.read_text()


@pytest.mark.parametrize("planted", ["file", "folder", "lock", "fifo"])
def test_planted_links_are_not_followed(home: Path, tmp_path: Path, planted: str) -> None:
    folder = home / "keys"
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    victim = elsewhere / "keys.json"
    victim.write_text(json.dumps(entry()))
    victim.chmod(0o644)
    before = victim.read_bytes()
    if planted == "folder":
        folder.symlink_to(elsewhere)
    else:
        folder.mkdir()
        name = "keys.lock" if planted == "lock" else "keys.json"
        if planted == "fifo":
            os.mkfifo(folder / name)
        else:
            (folder / name).symlink_to(victim)
    with pytest.raises(ConfigError) as refused:
        KeyStore().store("A_KEY", "not-for-others")
    if planted == "folder":
        assert str(refused.value).startswith(f"cannot use {folder}: it is a link or not a folder")
    if planted != "lock":
        with pytest.raises(ConfigError):
            environment()
    assert victim.read_bytes() == before
    assert mode(victim) == 0o644


def test_a_file_that_others_can_write_is_not_used(home: Path) -> None:
    KeyStore().store("A_KEY", KEY)
    KeyStore().file.chmod(0o666)
    with pytest.raises(ConfigError) as refused:
        environment()
    assert "chmod 600" in str(refused.value)


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() != 0, reason="needs to be root")
def test_a_file_of_another_user_is_not_used(tmp_path: Path) -> None:
    # Root may read what a user stored; a user may not be fed with what another one wrote.
    home = tmp_path / "home"
    (home / "keys").mkdir(parents=True)
    file = home / "keys" / "keys.json"
    file.write_text(json.dumps(entry()))
    file.chmod(0o644)
    for folder in (home, *home.parents):
        if folder.stat().st_uid == os.geteuid() and folder != Path("/"):
            folder.chmod(folder.stat().st_mode | 0o055)
    code = "os.setuid(65534)\nprint(dict(store.names()))"
    done = child(code, env={"AMPLIFIER_HOME": str(home)})
    assert "belongs to another user" in done.stderr


def test_two_processes_that_store_at_once_both_succeed(home: Path) -> None:
    code = "for n in range(20): store.store(f'{sys.argv[1]}_{n}_KEY', sys.argv[1])"
    writers = [start_python(HEAD + code, name) for name in "ABC"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    assert len(KeyStore().names()) == 60


def test_a_disk_that_refuses_leaves_what_was_there(store: KeyStore) -> None:
    store.store("A_KEY", KEY)
    before = store.file.read_bytes()
    with file_size_limit(10), pytest.raises(ConfigError, match="cannot write"):
        store.store("B_KEY", "other")
    assert store.file.read_bytes() == before


# -- the keyring -----------------------------------------------------------------------------


def test_a_key_goes_to_the_keyring_where_there_is_one(home: Path, keyring_file: Path) -> None:
    done = child("print(store.store('A_KEY', sys.argv[1]))", KEY)
    assert done.stdout == "Stored(where='keyring', note=None)\n", done.stderr
    assert KEY in keyring_file.read_text()
    assert KEY not in KeyStore().file.read_text()
    assert KeyStore().names() == {"A_KEY": ("keyring", None)}
    done = child("print(store.read('A_KEY'))")
    assert done.stdout == KEY + "\n"
    # Two homes do not share their entries.
    other = child("print(store.read('A_KEY'))", env={"AMPLIFIER_HOME": str(home / "x")})
    assert "KeyError" in other.stderr


def test_a_keyring_that_refuses_is_replaced_by_the_file(keyring_file: Path) -> None:
    keyring_file.with_name(keyring_file.name + ".locked").touch()
    done = child("print(store.store('A_KEY', sys.argv[1]))", KEY)
    assert "where='file'" in done.stdout
    assert "the collection is locked" in done.stdout
    assert KeyStore().read("A_KEY") == KEY
    done = child("store.store('A_KEY', sys.argv[1], 'keyring')", KEY)
    assert (
        "cannot store A_KEY in the keyring: the keyring failed: the collection is locked"
        in done.stderr
    )


def test_moving_a_key_out_of_the_keyring_leaves_nothing_in_it(keyring_file: Path) -> None:
    child("store.store('A_KEY', sys.argv[1])", KEY)
    assert KEY in keyring_file.read_text()
    done = child("store.store('A_KEY', 'other', 'file')")
    assert done.returncode == 0, done.stderr
    assert KEY not in keyring_file.read_text()
    assert KeyStore().read("A_KEY") == "other"


def test_forgetting_a_key_removes_it_from_the_keyring(keyring_file: Path) -> None:
    child("store.store('A_KEY', sys.argv[1])", KEY)
    assert child("print(store.forget('A_KEY'))").stdout == "True\n"
    assert KEY not in keyring_file.read_text()
    assert KeyStore().names() == {}


def test_a_plan_that_needs_a_key_of_a_locked_keyring_stops(keyring_file: Path) -> None:
    child("store.store('ANTHROPIC_API_KEY', sys.argv[1])", KEY)
    keyring_file.with_name(keyring_file.name + ".locked").touch()
    env = {"PYTHONPATH": str(BACKEND)}
    # Not silently answered by another model …
    done = run_amplifier("run", "hi", env=env)
    assert done.code == 78
    assert "ANTHROPIC_API_KEY" in done.stderr
    assert "locked" in done.stderr
    assert "Unlock the keyring, or set ANTHROPIC_API_KEY." in done.stderr
    # … and no obstacle where it is not needed.
    done = succeed("run", "--profile", "mock", "hi", env=env)
    assert "the collection is locked" in done.stderr
    # A variable that is set does without the keyring.
    with ScriptedLLM.running(["hello"]) as server:
        set_ = {"ANTHROPIC_API_KEY": "sk-real", "ANTHROPIC_BASE_URL": server.base_url}
        done = run_amplifier("run", "hi", env=env | set_)
    assert (done.code, done.stdout) == (0, "hello\n"), done.stderr
    assert "locked" not in done.stderr


def test_the_keyring_is_asked_once_in_a_run(keyring_file: Path) -> None:
    asked = keyring_file.with_name(keyring_file.name + ".asked")
    with ScriptedLLM.running(["hello"]) as server:
        address = f"Address('ANTHROPIC_BASE_URL', '{server.base_url}')"
        child(f"store.store('ANTHROPIC_API_KEY', sys.argv[1], address={address})", KEY)
        asked.unlink()
        env = {"PYTHONPATH": str(BACKEND), "ANTHROPIC_BASE_URL": server.base_url}
        done = run_amplifier("run", "hi", env=env)
        assert (done.code, done.stdout) == (0, "hello\n"), done.stderr
        assert server.completions[0].headers["x-api-key"] == KEY
    assert len(asked.read_text()) == 1


# -- like variables that are set -------------------------------------------------------------


def test_a_stored_key_makes_a_provider_available_and_is_used_by_it(home: Path) -> None:
    with ScriptedLLM.running(["hello"]) as server:
        env = {"OPENAI_BASE_URL": server.base_url}
        KeyStore().store("OPENAI_API_KEY", KEY, address=Address(*next(iter(env.items()))))
        with Terminal("run", "-m", "gpt-test", "hi", env=env) as terminal:
            assert terminal.finish() == 0
        assert server.completions[0].headers["authorization"] == f"Bearer {KEY}"
    assert "hello" in terminal.shown
    assert "because OPENAI_API_KEY is stored" in " ".join(terminal.shown.split())


@pytest.mark.parametrize(
    ("real", "used", "problems"),
    [
        ({}, True, 0),
        ({"A_URL": ""}, True, 0),
        ({"A_URL": "https://gateway.example/v1"}, True, 0),
        ({"A_URL": "https://elsewhere.example"}, False, 1),
        ({"A_KEY": "mine"}, False, 0),
    ],
)
def test_a_stored_key_comes_with_its_address_or_not_at_all(
    real: dict[str, str], used: bool, problems: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    address = Address("A_URL", "https://gateway.example")
    KeyStore().store("A_KEY", KEY, address=address)
    assert KeyStore().names() == {"A_KEY": ("file", address)}
    # Put back what is set below, too.
    for name in ("A_KEY", "A_URL"):
        monkeypatch.setenv(name, "")
        monkeypatch.delenv(name)
    for name, value in real.items():
        monkeypatch.setenv(name, value)
    seen = environment()
    expected = {"A_KEY": KEY, "A_URL": "https://gateway.example"} if used else real
    filled = fill_environment()
    for name in ("A_KEY", "A_URL"):
        assert os.environ.get(name, "").removesuffix("/v1") == expected.get(name, "").removesuffix(
            "/v1"
        )
        assert seen.get(name, "").removesuffix("/v1") == expected.get(name, "").removesuffix("/v1")
    assert len(filled.problems) == problems
    assert all("A_URL is another address" in problem for problem in filled.problems)


def test_an_unused_address_is_shown_without_its_login(monkeypatch: pytest.MonkeyPatch) -> None:
    KeyStore().store("A_KEY", KEY, address=Address("A_URL", "https://me:pw@gateway.example"))
    monkeypatch.setenv("A_URL", "https://elsewhere.example")
    seen = environment()
    assert isinstance(seen, Environment)
    assert seen.unused == {
        "A_KEY": "the stored A_KEY is not used: it is for https://gateway.example, and A_URL is another address"
    }


def test_the_order_of_an_address_in_the_file_is_free(store: KeyStore) -> None:
    store.store("A_KEY", KEY, "file", address=Address("A_URL", "https://h"))
    data = json.loads(store.file.read_text())
    data["keys"]["A_KEY"]["address"] = {"url": "https://h", "variable": "A_URL"}
    store.file.write_text(json.dumps(data))
    assert store.names()["A_KEY"].address == ("A_URL", "https://h")


def test_commands_do_not_get_the_address_of_a_stored_key() -> None:
    with ScriptedLLM.running(
        [Reply(tool_calls=[ToolCall("bash", {"command": "env"})]), "done"]
    ) as server:
        KeyStore().store("OPENAI_API_KEY", KEY, address=Address("OPENAI_BASE_URL", server.base_url))
        done = run_amplifier("run", "-m", "m", "--approve", "allow", "go")
        sent = str(server.completions[1].body)
    assert (done.code, done.stdout) == (0, "done\n"), done.stderr
    assert "PATH=" in sent
    assert "BASE_URL" not in sent


def test_a_set_variable_wins_even_if_it_is_empty(monkeypatch: pytest.MonkeyPatch) -> None:
    KeyStore().store("A_KEY", KEY)
    assert environment()["A_KEY"] == KEY
    for value in ("mine", ""):
        monkeypatch.setenv("A_KEY", value)
        assert environment()["A_KEY"] == value
        assert fill_environment().added == ()
        assert os.environ["A_KEY"] == value


def test_an_interpolated_key_is_masked_whatever_its_variable_is_called(
    tmp_path: Path,
) -> None:
    # Its name does not suggest a secret.
    KeyStore().store("MY_PASSPHRASE_X", KEY)
    plan = tmp_path / "plan.yaml"
    plan.write_text(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "providers:\n"
        "  - module: provider-mock\n"
        '    config: {replies: ["<${MY_PASSPHRASE_X}>"]}\n'
    )
    done = run_amplifier("run", "--plan", plan, "hi")
    assert (done.code, done.stdout) == (0, f"<{KEY}>\n"), done.stderr
    (saved,) = Path(os.environ["AMPLIFIER_HOME"]).glob("sessions/*/plan.yaml")
    assert KEY not in saved.read_text()
    assert "${MY_PASSPHRASE_X}" in saved.read_text()


def test_a_stored_key_is_visible_to_its_provider_only(tmp_path: Path, home: Path) -> None:
    odd = "odd-name-0123456789"
    KeyStore().store("ODDLY_NAMED", odd)
    look = "env; cat /proc/$PPID/environ; echo done"
    # The model knows the keys and says them; what is logged of it does not.
    call = ToolCall("bash", {"command": look, "working_directory": "."})
    said = Reply(f"I heard {KEY} and {odd}", tool_calls=[call])
    with ScriptedLLM.running([said, "finished"]) as server:
        env = {"ANTHROPIC_BASE_URL": server.base_url, "ODD_COPY": "x"}
        address = Address("ANTHROPIC_BASE_URL", server.base_url)
        KeyStore().store("ANTHROPIC_API_KEY", KEY, address=address)
        done = succeed("run", "--approve", "allow", "go", cwd=tmp_path, env=env)
        (sent,) = (
            block
            for block in server.completions[1].body["messages"][-1]["content"]
            if block["type"] == "tool_result"
        )
        assert server.completions[0].headers["x-api-key"] == KEY
    assert "AMPLIFIER_HOME=" in str(sent)
    for secret in (KEY, odd):
        assert secret not in str(sent)
        assert secret not in done.stderr
        holders = {
            path.name
            for path in home.rglob("*")
            if path.is_file() and secret.encode() in path.read_bytes()
        }
        # What the model said is conversation, which a resume needs.
        assert holders == {"keys.json", "transcript.jsonl"}


def test_without_a_stored_key_nothing_is_imported_and_one_file_is_opened(home: Path) -> None:
    code = (
        "opened = []\n"
        "sys.addaudithook(lambda e, a: opened.append(a[0]) if e == 'open' else None)\n"
        "before = set(sys.modules)\n"
        "assert environment() is os.environ and fill_environment().added == ()\n"
        "new = set(sys.modules) - before - {'platformdirs'}\n"
        "looked = [str(p) for p in opened if 'keys' in str(p)]\n"
        "print(sorted(new), len(set(looked)))"
    )
    command = [sys.executable, "-c", HEAD + code]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.stdout == "[] 1\n", done.stderr
