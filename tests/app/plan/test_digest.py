"""The digest of a plan: the same for the same configuration, wherever it is."""

from pathlib import Path

import pytest

from amplifier_app.sources.loading import load

PLAN = """
name: {name}
session: {{orchestrator: loop-basic, context: context-simple}}
providers:
  - {{module: provider-openai, config: {{api_key: "${{OPENAI_API_KEY}}", model: gpt}}}}
tools:
  - {{module: tool-own, source: ./tool-own, config: {{cost: "$$5", at: "{cache}/x"}}}}
instruction: |
  Answer in one line.
"""


def digest_in(folder: Path, *, name: str = "one", key: str = "k", **options: object) -> str:
    folder.mkdir(exist_ok=True)
    (folder / "tool-own").mkdir(exist_ok=True)
    plan = folder / "plan.yaml"
    if not plan.exists():
        plan.write_text(PLAN.format(name=name, cache=folder / "home" / "cache"))
    environ = {"OPENAI_API_KEY": key}
    return load(plan=plan, environ=environ, **options).digest  # type: ignore[arg-type]


def test_the_digest_does_not_depend_on_the_machine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    digests: set[str] = set()
    for name, key in (("one", "secret"), ("two", "other")):
        folder = tmp_path / name
        monkeypatch.setenv("AMPLIFIER_HOME", str(folder / "home"))
        digests.add(digest_in(folder, name=name, key=key))
    (digest,) = digests
    assert digest.startswith("sha256:")


def test_the_digest_of_a_bundle_does_not_depend_on_its_folder(tmp_path: Path) -> None:
    plan = PLAN.replace("name: {name}", "bundle: {{name: app}}").format(cache="c")

    def digest(folder: str, docs: str) -> str:
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "plan.yaml").write_text(f"{plan}namespaces: {{docs: {docs}}}\n")
        return digest_in(tmp_path / folder)

    archives = [f"'./docs.zip#sha256={number * 64}'" for number in "01"]
    one, two, *others = [
        digest(folder, docs)
        for folder, docs in zip(
            ("one", "two", "three", "four", "five"),
            ("./docs", "./docs", "[./docs, ./more]", *archives),
            strict=True,
        )
    ]
    assert one == two
    assert len({one, *others}) == 4


def test_the_digest_of_a_saved_plan_is_that_of_the_original(tmp_path: Path) -> None:
    digest = digest_in(tmp_path)
    environ = {"OPENAI_API_KEY": "k"}
    saved = tmp_path / "saved" / "plan.yaml"
    saved.parent.mkdir()
    saved.write_text(load(plan=tmp_path / "plan.yaml", environ=environ).to_yaml())
    assert load(plan=saved, environ=environ).digest == digest


def test_each_change_of_the_plan_changes_the_digest(tmp_path: Path) -> None:
    digests = [
        digest_in(tmp_path),
        digest_in(tmp_path, model="other"),
        digest_in(tmp_path, sets=["session.budget.max_cost=1"]),
        digest_in(tmp_path, sets=["instruction=Answer in two lines."]),
        digest_in(tmp_path, sets=["tools.tool-own.source=/elsewhere/tool-other"]),
    ]
    assert len(set(digests)) == len(digests)
