"""`amplifier doctor` as a real process: it reports problems with a fix and changes nothing."""

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from amplifier_app.base.keys import KeyStore
from tests.support.cli import Finished, run_amplifier, succeed
from tests.support.llm_server import ScriptedLLM

KEY = "sk-secret-0123456789abcdef"


class Diagnosis(NamedTuple):
    done: Finished
    checks: list[dict[str, Any]]

    def of(self, name: str) -> list[dict[str, Any]]:
        return [check for check in self.checks if check["name"] == name]

    def state(self, name: str) -> str:
        """The worst state of the checks of this name."""
        states = [check["state"] for check in self.of(name)]
        return max(states, key=["ok", "warn", "fail"].index)

    def text(self, name: str) -> str:
        return "\n".join(f"{check['message']} → {check['advice']}" for check in self.of(name))


def diagnosed(
    *options: str, env: Mapping[str, str | None] | None = None, cwd: Path | None = None
) -> Diagnosis:
    done = run_amplifier("doctor", "--output", "json", *options, env=env, cwd=cwd)
    assert KEY not in done.stdout + done.stderr
    assert "Traceback" not in done.stderr
    report = json.loads(done.stdout)
    checks = report["checks"]
    failed = [check for check in checks if check["state"] == "fail"]
    assert report["ok"] == (not failed)
    assert done.code == (78 if failed else 0)
    for check in checks:
        assert set(check) == {"name", "state", "message", "advice"}
        assert check["state"] == "ok" or check["advice"], check
    return Diagnosis(done, checks)


DEMO: dict[str, str | None] = {"AMPLIFIER_DEMO": "1"}


@pytest.fixture
def path_without_git(tmp_path: Path) -> Path:
    folder = tmp_path / "bin"
    folder.mkdir()
    return folder


def test_a_sound_setup_exits_with_0_and_nothing_is_changed(home: Path, tmp_path: Path) -> None:
    shutil.rmtree(home)
    found = diagnosed(cwd=tmp_path, env=DEMO)
    assert found.done.code == 0
    assert not home.exists()
    for name in ("python", "amplifier", "git", "uv", "encoding", "home", "keys", "cache"):
        assert found.state(name) == "ok", found.of(name)
    for name in ("sessions", "project", "settings", "profiles", "default"):
        assert found.state(name) == "ok", found.of(name)
    assert "amplifier init" in found.text("providers")


def test_each_line_has_its_state_and_is_followed_by_a_fix(home: Path) -> None:
    (home / "settings.yaml").write_text("sessoin: {}\n")
    done = run_amplifier("doctor")
    assert (done.code, done.stderr) == (78, "")
    lines = done.stdout.splitlines()
    assert any(line.startswith("ok    python ") for line in lines)
    (at,) = (number for number, line in enumerate(lines) if line.startswith("FAIL  settings"))
    assert f"{home / 'settings.yaml'}:1:1" in lines[at]
    assert "'session'" in lines[at]
    assert any(line.strip().startswith("→ fix it") for line in lines[at:])
    assert lines[-1].startswith("1 failed, ")


def test_missing_git_proxies_and_certificates_are_reported_without_passwords(
    path_without_git: Path,
) -> None:
    login = f"http://user:{KEY}@127.0.0.1:3128"
    env = {"HTTPS_PROXY": login, "http_proxy": f"user:{KEY}@127.0.0.1:3128", "NO_PROXY": "a,b"}
    path = {"PATH": str(path_without_git), "SSL_CERT_FILE": "/not/there.pem"}
    found = diagnosed(env={**env, **path, **DEMO})
    assert found.state("git") == "warn"
    assert "install git" in found.text("git")
    text = found.text("proxies")
    assert "HTTPS_PROXY=http://***@127.0.0.1:3128" in text
    assert "HTTP_PROXY=***@127.0.0.1:3128" in text
    assert "NO_PROXY=a,b" in text
    assert found.state("certificates") == "fail"


def test_an_old_git_and_invalid_or_overriding_variables_are_warnings(
    path_without_git: Path,
) -> None:
    git = path_without_git / "git"
    git.write_text("#!/bin/sh\necho git version 2.17.1\n")
    git.chmod(0o755)
    KeyStore().store("OPENAI_API_KEY", KEY)
    env = {"OPENAI_API_KEY": KEY + "x", "ANTHROPIC_API_KEY": f'"{KEY}"'}
    found = diagnosed(env={"PATH": f"{path_without_git}:{os.environ['PATH']}", **env})
    assert found.done.code == 0
    assert found.state("git") == "warn"
    assert "2.17.1" in found.text("git")
    assert found.state("keys") == "warn"
    assert "unset OPENAI_API_KEY" in found.text("keys")
    assert found.state("anthropic") == "warn"
    assert "set ANTHROPIC_API_KEY to the key" in found.text("anthropic")


def test_an_encoding_other_than_utf_8_is_a_warning() -> None:
    env = {"LC_ALL": "POSIX", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    found = diagnosed(env={**env, "PYTHONIOENCODING": None})
    assert found.state("encoding") == "warn"
    assert "LC_ALL" in found.text("encoding")


# -- storage ---------------------------------------------------------------------------------


def test_keys_are_listed_with_their_places_and_never_shown() -> None:
    KeyStore().store("OPENAI_API_KEY", KEY)
    found = diagnosed()
    assert "OPENAI_API_KEY in " in found.text("keys")
    assert found.state("keys") == "ok"
    assert "OPENAI_API_KEY is stored in the file" in found.text("openai")


def test_keys_readable_by_others_fail_with_a_fix() -> None:
    store = KeyStore()
    store.store("OPENAI_API_KEY", KEY)
    store.file.chmod(0o644)
    store.folder.chmod(0o755)
    found = diagnosed()
    assert found.state("keys") == "fail"
    assert f"chmod 600 '{store.file}'" in found.text("keys")
    assert f"chmod 700 '{store.folder}'" in found.text("keys")
    assert store.file.stat().st_mode & 0o777 == 0o644


def test_a_damaged_key_file_fails_and_is_not_changed() -> None:
    store = KeyStore()
    store.store("OPENAI_API_KEY", KEY)
    store.file.write_text(store.file.read_text()[:-4])
    before = store.file.read_bytes()
    found = diagnosed()
    assert found.state("keys") == "fail"
    assert "damaged" in found.text("keys")
    assert store.file.read_bytes() == before


def test_a_key_that_cannot_be_sent_fails_and_is_not_shown() -> None:
    found = diagnosed(env={"ANTHROPIC_API_KEY": f"{KEY}\n{KEY}"})
    assert found.state("anthropic") == "fail"


def test_a_missing_keyring_fails(home: Path) -> None:
    folder = home / "keys"
    folder.mkdir(mode=0o700)
    entries = {"version": 1, "keys": {"OPENAI_API_KEY": {"where": "keyring"}}}
    (folder / "keys.json").write_text(json.dumps(entries))
    (folder / "keys.json").chmod(0o600)
    found = diagnosed()
    assert found.state("keyring") == "fail"
    assert "no keyring" in found.text("keyring")


def test_a_home_that_is_not_a_folder_fails(tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.touch()
    found = diagnosed(env={"AMPLIFIER_HOME": str(file)})
    assert found.state("home") == "fail"
    assert str(file) in found.text("home")


@pytest.mark.skipif(not hasattr(os, "geteuid") or os.geteuid() == 0, reason="root may write it")
def test_a_home_that_cannot_be_written_fails(home: Path) -> None:
    home.chmod(0o500)
    try:
        found = diagnosed()
    finally:
        home.chmod(0o700)
    assert found.state("home") == "fail"


def test_linked_sessions_fail_and_readable_ones_are_a_warning(home: Path, tmp_path: Path) -> None:
    (home / "sessions").mkdir()
    (home / "sessions").chmod(0o755)
    found = diagnosed()
    assert found.state("providers") == "fail"
    assert "amplifier init" in found.text("providers")
    assert found.state("sessions") == "warn"
    assert "chmod 700" in found.text("sessions")
    (home / "sessions").rmdir()
    (home / "sessions").symlink_to(tmp_path)
    assert diagnosed().state("sessions") == "fail"


def test_saved_sessions_and_the_cache_are_counted(home: Path) -> None:
    succeed("run", "--profile", "mock", "hi")
    (home / "cache").mkdir(exist_ok=True)
    (home / "cache" / "model").write_bytes(b"x" * 3_000_000)
    found = diagnosed()
    assert ", 1 saved, " in found.text("sessions")
    assert ", 3.0 MB" in found.text("cache")


# -- documents -----------------------------------------------------------------------------


def test_an_invalid_profile_fails_and_one_with_an_unset_variable_warns(home: Path) -> None:
    (home / "profiles").mkdir()
    (home / "profiles" / "broken.yaml").write_text("session: [\n")
    text = "extends: minimal\ninstruction: ${NOT_SET_HERE}\n"
    (home / "profiles" / "needy.yaml").write_text(text)
    found = diagnosed()
    states = {check["message"].partition(":")[0]: check["state"] for check in found.of("profiles")}
    assert states["broken"] == "fail"
    assert states["needy"] == "warn"
    assert found.state("default") == "ok"


def test_an_untrusted_project_is_a_warning_and_is_skipped(tmp_path: Path) -> None:
    (tmp_path / ".amplifier").mkdir()
    (tmp_path / ".amplifier" / "settings.yaml").write_text("profile: nowhere\n")
    found = diagnosed(cwd=tmp_path, env=DEMO)
    assert found.done.code == 0
    assert found.state("project") == "warn"
    assert "amplifier trust" in found.text("project")
    assert found.state("settings") == "ok"
    assert "nowhere" not in found.done.stdout


# -- providers -------------------------------------------------------------------------------


def test_no_provider_is_contacted_without_online() -> None:
    with ScriptedLLM.running(["ready"], api_key=KEY) as server:
        env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.base_url}
        assert diagnosed(env=env).of("online") == []
        assert server.requests == []
        found = diagnosed("--online", env=env)
        assert len(server.completions) == 1
    assert found.state("online") == "ok"
    assert "anthropic answers: " in found.text("online")


def test_a_rejected_key_fails_online() -> None:
    with ScriptedLLM.running([], api_key="another") as server:
        env = {"ANTHROPIC_API_KEY": KEY, "ANTHROPIC_BASE_URL": server.base_url}
        found = diagnosed("--online", env=env)
    assert found.done.code == 78
    assert found.state("online") == "fail"
