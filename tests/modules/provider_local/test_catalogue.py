"""The shipped catalogue: what is in it, what it says of licences, how a model is named."""

import re
from importlib import resources

import pytest

from amplifier_core.llm_errors import ConfigurationError
from amplifier_modules.provider_local.store import (
    catalogue,
    check_gguf,
    default_model,
    find_model,
)

PACKAGE = resources.files("amplifier_modules.provider_local")


def test_the_default_is_the_small_chat_model():
    assert default_model() == "smollm2-135m"
    assert find_model("smollm2-135m").tool_calling == "off"
    assert find_model("qwen2.5-coder-1.5b").tool_calling == "json"


@pytest.mark.parametrize("model", catalogue().values(), ids=lambda model: model.id)
def test_every_entry_is_whole_and_pinned(model):
    weights = model.weights
    assert weights is not None
    assert re.fullmatch(r"[0-9a-f]{64}", weights.sha256)
    assert weights.size > 0
    assert weights.file.endswith(".gguf")
    assert "/" not in weights.file
    assert weights.licence == "Apache-2.0"
    assert weights.licence_stated_in
    assert weights.attribution
    assert model.context_window > model.max_output_tokens > 0
    for part in weights.parts:
        assert re.fullmatch(r"[a-z0-9-]+==[0-9.]+", part.requirement)
        assert not part.member.startswith("/")
        assert ".." not in part.member


@pytest.mark.parametrize("model", catalogue().values(), ids=lambda model: model.id)
def test_the_notice_attributes_every_model(model):
    notice = PACKAGE.joinpath("NOTICE.txt").read_text()
    assert model.id in notice
    for part in (model.weights.parts[0], model.weights.parts[-1]):
        assert part.requirement.partition("==")[0] in notice


def test_the_licence_itself_is_shipped():
    text = PACKAGE.joinpath("LICENSE-APACHE-2.0.txt").read_text()
    assert "Apache License" in text
    assert "Version 2.0, January 2004" in text


def test_the_large_model_is_joined_from_its_parts_in_order():
    parts = find_model("qwen2.5-coder-1.5b").weights.parts
    assert [part.member.rpartition("/")[2] for part in parts] == [
        f"part{n:02d}.bin" for n in range(1, 23)
    ]


def test_a_path_is_a_model_of_ones_own(tmp_path, monkeypatch):
    monkeypatch.setenv("HOME", str(tmp_path))
    model = find_model("~/models/mine.gguf")
    assert model.path == tmp_path / "models" / "mine.gguf"
    assert model.weights is None
    assert model.tool_calling == "native"


def test_an_unknown_name_is_refused_with_the_known_names():
    with pytest.raises(ConfigurationError, match=r"smolm2.*did you mean 'smollm2-135m'.*GGUF"):
        find_model("smolm2")


def test_only_gguf_files_can_be_opened(tmp_path):
    good, bad = tmp_path / "good.gguf", tmp_path / "bad.gguf"
    good.write_bytes(b"GGUF....")
    bad.write_bytes(b"hello")
    check_gguf(good)
    with pytest.raises(ConfigurationError, match="not a GGUF file"):
        check_gguf(bad)
    with pytest.raises(ConfigurationError, match=r"cannot read.*missing\.gguf"):
        check_gguf(tmp_path / "missing.gguf")
