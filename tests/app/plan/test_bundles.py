"""Bundles: documents that include others, in YAML and in Markdown."""

from pathlib import Path

import pytest

from amplifier_app.plan.documents.bundles import MAX_BUNDLES, MAX_DEPTH
from amplifier_app.plan.tree.problems import PlanError
from amplifier_app.sources.loading import load
from tests.app.plan.conftest import Write

SESSION = "session: {orchestrator: loop-basic, context: context-simple}\n"


def bundle(name: str, text: str = "", body: str = "") -> str:
    """A bundle in Markdown."""
    return f"---\nbundle:\n  name: {name}\n  version: 1.0.0\n{text}---\n{body}"


def problems(file: str = "bundle.md") -> list[str]:
    with pytest.raises(PlanError) as caught:
        load(plan=file, environ={})
    return [f"{one.at}: {one.message}" for one in caught.value.problems]


def test_a_bundle_is_the_same_in_markdown_and_yaml(write: Write) -> None:
    text = f"bundle: {{name: same, version: 1.0.0}}\n{SESSION}tools: [tool-bash]\n"
    write(f"{text}instruction: Be brief.\n", "same.yaml")
    write(f"---\n{text}---\nBe brief.\n", "same.md")
    plans = [load(plan=name, environ={}) for name in ("same.yaml", "same.md")]
    assert plans[0].data == plans[1].data
    assert plans[0].name == "same"


def test_later_bundles_override_earlier_ones_and_the_bundle_itself_comes_last(
    write: Write,
) -> None:
    write(
        "bundle: {name: first}\n"
        "session:\n  orchestrator: {module: loop-basic, config: {max_iterations: 3, raw: 1}}\n"
        "  context: context-simple\n"
        "tools:\n  - {module: tool-bash, config: {timeout: 1, max_output: 10}}\n"
        "  - tool-search\n"
        "agents: {one: {description: first, tools: [tool-bash]}}\n"
        "instruction: First.\n",
        "first.yaml",
    )
    write(
        "bundle: {name: second}\n"
        "session: {orchestrator: {config: {max_iterations: 5}}}\n"
        "tools: [{module: tool-bash, config: {timeout: 2}}]\n"
        "agents: {one: {description: second}, two: {description: other}}\n"
        "instruction: Second.\n",
        "second.yaml",
    )
    write(
        bundle(
            "mine",
            "includes:\n  - ./first.yaml\n  - bundle: ./second.yaml\n"
            "tools: [{module: tool-bash, config: {max_output: 30}}]\nhooks: [hooks-logging]\n",
            "Mine.\n",
        ),
        "bundle.md",
    )
    plan = load(plan="bundle.md", environ={})
    mounted = plan.mount_plan()
    orchestrator = {"module": "loop-basic", "config": {"max_iterations": 5, "raw": 1}}
    assert mounted["session"]["orchestrator"] == orchestrator
    assert mounted["tools"] == [
        {"module": "tool-bash", "config": {"timeout": 2, "max_output": 30}},
        {"module": "tool-search", "config": {}},
    ]
    # Agents are replaced, not merged.
    assert mounted["agents"] == {"one": {"description": "second"}, "two": {"description": "other"}}
    assert plan.instruction == "Mine."
    assert str(plan.origin("tools.tool-bash.config.timeout")) == "second.yaml:3:47"
    assert plan.merged.chain == ("bundle.md", "second.yaml", "first.yaml")


def test_a_bundle_with_includes_only_is_a_plan(write: Write) -> None:
    write(f"bundle: {{name: base}}\n{SESSION}instruction: Of the base.\n", "base.yaml")
    write("bundle: {name: thin}\nincludes: [./base.yaml]\n", "thin.yaml")
    plan = load(plan="thin.yaml", environ={})
    assert (plan.name, plan.instruction) == ("thin", "Of the base.")


def test_a_namespace_is_the_name_of_a_bundle_and_starts_at_its_root(write: Write) -> None:
    write(
        bundle(
            "kit",
            f"includes: [kit:behaviors/search]\n{SESSION}",
            "Kit.\n@kit:context/base.md\n",
        ),
        "vendor/kit-1.0/bundle.md",
    )
    write(
        "bundle: {name: search-behavior}\n"
        "includes: [kit:behaviors/deep/more.yaml]\n"
        "tools: [tool-search]\n"
        "agents: {include: [kit:finder]}\n"
        "context: {include: [kit:context/search.md]}\n",
        "vendor/kit-1.0/behaviors/search.yaml",
    )
    write("bundle: {name: more}\ntools: [tool-bash]\n", "vendor/kit-1.0/behaviors/deep/more.yaml")
    write("Base.\n", "vendor/kit-1.0/context/base.md")
    write("Search well.\n@kit:context/base.md\n", "vendor/kit-1.0/context/search.md")
    write(
        "---\nmeta: {name: finder, description: Finds}\n---\nFind.\n@kit:context/base.md\n",
        "vendor/kit-1.0/agents/finder.md",
    )
    write(
        bundle(
            "app",
            "includes:\n  - bundle: ./vendor/kit-1.0\n  - bundle: kit\n"
            "agents: {include: [kit:finder]}\n",
            "App.\n\n@kit:context/base.md\n",
        ),
        "bundle.md",
    )
    plan = load(plan="bundle.md", environ={})
    assert [tool["module"] for tool in plan.mount_plan()["tools"]] == ["tool-bash", "tool-search"]
    assert plan.mount_plan()["agents"] == {
        "kit:finder": {"description": "Finds", "instruction": "Find.\nBase."}
    }
    assert plan.instruction == (
        "App.\n\nBase.\n\n# Context: kit:context/search.md\n\nSearch well.\nBase."
    )
    assert plan.warnings == []
    # A folder is a bundle as well.
    assert load(plan="vendor/kit-1.0", environ={}).instruction == (
        "Kit.\nBase.\n\n# Context: kit:context/search.md\n\nSearch well.\nBase."
    )


def test_files_that_a_sentence_mentions_follow_the_instruction(write: Write) -> None:
    write("Rules ${HOME}.\nSee @mine:more.md for more.\n", "rules.md")
    write("More.\n", "more.md")
    write(
        bundle(
            "mine",
            SESSION,
            "Follow @mine:rules.md, not `@mine:code.md`.\n```\n@mine:fence.md\n```\n",
        ),
        "bundle.md",
    )
    plan = load(plan="bundle.md", environ={})
    assert plan.instruction == (
        "Follow @mine:rules.md, not `@mine:code.md`.\n```\n@mine:fence.md\n```\n\n"
        "# Context: @mine:rules.md\n\nRules ${HOME}.\nSee @mine:more.md for more.\n\n"
        "# Context: @mine:more.md\n\nMore."
    )
    assert plan.warnings == []


def test_a_folder_that_is_mentioned_is_reported(write: Write) -> None:
    write("A.\n", "docs/a.md")
    write(bundle("mine", SESSION, "@mine:docs/\n"), "bundle.md")
    plan = load(plan="bundle.md", environ={})
    assert plan.instruction == "@mine:docs/"
    assert plan.warnings == [
        "bundle.md:7:1: '@mine:docs/' is a folder, not a file; the line is kept as is"
    ]


def test_context_files_of_all_bundles_accumulate_and_come_once(write: Write) -> None:
    for name in ("a", "b"):
        write(f"{name.upper()}.\n", f"context/{name}.md")
    write(
        f"bundle: {{name: part}}\n{SESSION}context: {{include: [../context/a.md]}}\n",
        "behaviors/part.yaml",
    )
    write(
        bundle(
            "mine",
            'includes: [mine:behaviors/part]\ncontext: {include: [b, "@mine:context/a.md"]}\n',
        ),
        "bundle.md",
    )
    plan = load(plan="bundle.md", environ={})
    assert plan.instruction == ("# Context: ../context/a.md\n\nA.\n\n# Context: b\n\nB.")


def test_ignored_keys_of_a_bundle_are_warnings_with_a_location(write: Write) -> None:
    write(
        f"bundle: {{name: odd}}\n{SESSION}"
        "spawn: {exclude_tools: [tool-task]}\n"
        "tool: [tool-bash]\n"
        "tools:\n  - module: tool-bash\n    enabled: true\n"
        "agents: {include: [gone, other:gone]}\n"
        "instruction: Read @other:page.md now.\n",
        "odd.yaml",
    )
    plan = load(plan="odd.yaml", environ={})
    assert [warning for warning in plan.warnings if "agent" not in warning] == [
        "odd.yaml:9:19: '@other:page.md' names a file in an unknown bundle or collection; "
        "the line is kept as is",
        "odd.yaml:3:1: 'spawn' in the plan is ignored",
        "odd.yaml:4:1: 'tool' in the plan is ignored; did you mean 'tools'?",
        "odd.yaml:7:5: 'enabled' in tools[0] is ignored",
    ]
    missing = [warning for warning in plan.warnings if "unknown agent" in warning]
    assert missing[0].startswith("odd.yaml:8:20: unknown agent 'gone'; searched agents/gone")
    assert "unknown agent 'other:gone'" in missing[1]
    assert plan.instruction == "Read @other:page.md now."


def test_an_agent_may_list_what_it_delegates_to(write: Write) -> None:
    write(
        "---\nmeta: {name: lead, description: Leads}\nagents: [helper]\n"
        "context: {include: [rules.md]}\n---\nLead.\n",
        "agents/lead.md",
    )
    write("Rules.\n", "agents/rules.md")
    write(bundle("mine", f"{SESSION}agents: {{include: [mine:lead]}}\n"), "bundle.md")
    plan = load(plan="bundle.md", environ={})
    assert plan.mount_plan()["agents"]["mine:lead"]["instruction"] == (
        "Lead.\n\n# Context: rules.md\n\nRules."
    )
    assert plan.warnings == ["agents/lead.md:3:1: 'agents' in the agent is ignored"]


def test_instances_of_one_provider_are_distinguished_by_id(write: Write) -> None:
    write(
        f"bundle: {{name: two}}\n{SESSION}providers:\n"
        "  - {module: provider-mock, id: a}\n  - {module: provider-mock, id: b}\n",
        "two.yaml",
    )
    providers = load(plan="two.yaml", environ={}).mount_plan()["providers"]
    assert [one["instance_id"] for one in providers] == ["a", "b"]


# -- what is wrong ---------------------------------------------------------------------------


def test_circular_bundles_are_reported_with_the_chain(write: Write) -> None:
    write("bundle: {name: b}\nincludes: [./c.md]\n", "b.yaml")
    write(bundle("c", "includes: [./b.yaml]\n"), "c.md")
    write(bundle("a", f"includes: [./b.yaml]\n{SESSION}"), "bundle.md")
    assert problems() == ["c.md:5:12: circular 'includes': b.yaml → c.md → b.yaml"]


def test_the_depth_of_bundles_is_limited(write: Write) -> None:
    for number in range(MAX_DEPTH + 2):
        write(f"bundle: {{name: n}}\nincludes: [./{number + 1}.yaml]\n", f"{number}.yaml")
    write("bundle: {name: n}\n", f"{MAX_DEPTH + 2}.yaml")
    [problem] = problems("0.yaml")
    assert problem.endswith(f"bundles are nested more than {MAX_DEPTH} levels deep")


def test_the_number_of_bundles_is_limited(write: Write) -> None:
    for number in range(15):
        one = f"./{number + 1}.yaml"
        write(f"bundle: {{name: n}}\nincludes: [{one}, {one}]\n", f"{number}.yaml")
    write("bundle: {name: n}\n", "15.yaml")
    assert any(f"more than {MAX_BUNDLES} bundles" in problem for problem in problems("0.yaml"))


@pytest.mark.parametrize(
    ("named", "message", "hint"),
    [
        ("./gone.md", "the bundle './gone.md' does not exist", "searched gone.md"),
        ("mine:gone", "the bundle 'mine:gone' does not exist", "searched gone, gone.md"),
        ("other:x", "the bundle 'other:x' does not exist", "known bundles: mine"),
        ("other", "the bundle 'other' does not exist", "sources: {other: git+https://…}"),
        ("./empty", "the folder './empty' contains no bundle", "expected one of"),
        ("git+ext::sh -c x", "a git URL cannot contain spaces", "%20"),
        ("git+ext::sh", "git sources over 'ext' are not allowed", "git+https"),
        ("git+https://-x/y", "is not a host", ""),
        ("http://example.com/x.zip", "http:// is not secure", "https"),
        ("${WHERE}", "variables are not supported here", "source itself"),
        ("[1]", "invalid entry in 'includes'", "- bundle:"),
    ],
)
def test_a_bundle_that_cannot_be_included_says_why(
    write: Write, tmp_path: Path, named: str, message: str, hint: str
) -> None:
    (tmp_path / "empty").mkdir()
    value = named if named.startswith("[") else f'"{named}"'
    write(bundle("mine", f"{SESSION}includes:\n  - bundle: {value}\n"), "bundle.md")
    with pytest.raises(PlanError) as caught:
        load(plan="bundle.md", environ={})
    [problem] = caught.value.problems
    assert message in problem.message
    assert hint in (problem.hint or "")
    assert (problem.at.file, problem.at.line) == ("bundle.md", 7)


def test_a_missing_context_file_is_an_error_with_the_searched_paths(
    write: Write,
) -> None:
    write(bundle("mine", f"{SESSION}context: {{include: [mine:a.md, b.md]}}\n"), "bundle.md")
    with pytest.raises(PlanError) as caught:
        load(plan="bundle.md", environ={})
    first, second = caught.value.problems
    assert first.message == "the context file 'mine:a.md' does not exist"
    assert str(first.hint).startswith("searched a.md, ")
    assert str(second.hint).startswith("searched b.md, ")


def test_an_included_document_cannot_extend_another(write: Write) -> None:
    write("bundle: {name: part}\nextends: default\n", "part.yaml")
    write(bundle("mine", f"{SESSION}includes: [./part.yaml]\n"), "bundle.md")
    assert problems() == ["part.yaml:2:1: an included document cannot use 'extends'"]


def test_a_bundle_without_a_session_is_added_to_the_default_profile(write: Write) -> None:
    listed = "[{module: tool-bash, config: {timeout: 7}}, tool-web]"
    write(f"bundle: {{name: part}}\ntools: {listed}\nincludes: [./more.yaml]\n", "part.yaml")
    write("bundle: {name: more}\nsession: {orchestrator: loop-basic}\n", "more.yaml")
    plan = load(plan="part.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    mounted = plan.mount_plan()
    assert mounted["session"]["orchestrator"]["module"] == "loop-basic"
    assert mounted["session"]["context"]["module"] == "context-simple"
    tools = {tool["module"]: tool.get("config") for tool in mounted["tools"]}
    assert tools["tool-bash"] == {"timeout": 7}
    assert {"tool-web", "tool-filesystem"} < set(tools)
    assert "hooks-approval" in [hook["module"] for hook in mounted["hooks"]]
    assert [provider["module"] for provider in mounted["providers"]] == ["provider-anthropic"]
    note = "part.yaml:1:1: the bundle has no context: added to the profile 'default'"
    assert note in plan.warnings


def test_a_bundle_without_a_session_is_added_to_the_profile_in_settings(
    write: Write,
) -> None:
    write("profile: minimal\n", "home/settings.yaml")
    write("bundle: {name: part}\ntools: [tool-bash]\n", "part.yaml")
    plan = load(plan="part.yaml", provider="anthropic", environ={"ANTHROPIC_API_KEY": "k"})
    assert [tool["module"] for tool in plan.mount_plan()["tools"]] == ["tool-bash"]


def test_a_module_of_the_profile_that_the_bundle_replaces_is_reported(write: Write) -> None:
    hooks = "[{module: hooks-approval, source: ./mine}, hooks-backup]"
    write(f"bundle: {{name: part}}\nhooks: {hooks}\n", "part.yaml")
    plan = load(plan="part.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    notes = [note for note in plan.warnings if "replaces" in note]
    assert notes == ["part.yaml:2:9: hooks-approval replaces the profile's hooks-approval"]


def test_default_profiles_without_a_session_are_added_to_the_bundled_one(write: Write) -> None:
    write("profile: first\n", "home/settings.yaml")
    write("bundle: {name: first}\ntools: [tool-task]\n", "home/profiles/first.yaml")
    write("bundle: {name: second}\ntools: [tool-web]\n", "home/profiles/default.yaml")
    write("bundle: {name: part}\ntools: [tool-mcp]\n", "part.yaml")
    plan = load(plan="part.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    tools = [tool["module"] for tool in plan.mount_plan()["tools"]]
    assert {"tool-mcp", "tool-task", "tool-web", "tool-bash"} <= set(tools)


def test_what_a_bundle_includes_needs_no_table(write: Write) -> None:
    write("tools: [tool-bash]\ncontext: {include: [mine:a.md]}\n", "behaviors/plain.yaml")
    write("A.\n", "a.md")
    write(bundle("mine", f"{SESSION}includes: [mine:behaviors/plain]\n"), "bundle.md")
    plan = load(plan="bundle.md", environ={})
    assert [tool["module"] for tool in plan.mount_plan()["tools"]] == ["tool-bash"]
    assert plan.instruction == "# Context: mine:a.md\n\nA."


def test_the_folder_of_a_namespace_can_be_named(write: Write) -> None:
    write(
        f"bundle: {{name: up, namespace_root: ..}}\n{SESSION}agents: {{include: [up:one]}}\n",
        "lib/behaviors/up.yaml",
    )
    write("---\nmeta: {name: one, description: One}\n---\n", "lib/agents/one.md")
    plan = load(plan="lib/behaviors/up.yaml", environ={})
    assert plan.mount_plan()["agents"] == {"up:one": {"description": "One"}}
    assert plan.warnings == []


def test_agents_may_be_written_next_to_those_that_are_listed(write: Write) -> None:
    write("---\nmeta: {description: One}\n---\n", "agents/one.md")
    write(
        bundle(
            "mine",
            f"{SESSION}agents:\n  include: [mine:one]\n  other: {{description: Other}}\n",
        ),
        "bundle.md",
    )
    plan = load(plan="bundle.md", environ={})
    assert set(plan.mount_plan()["agents"]) == {"mine:one", "other"}


def test_a_plan_that_is_not_a_bundle_stays_strict(write: Write) -> None:
    write(f"{SESSION}includes: [./other.yaml]\nmodes: []\n")
    with pytest.raises(PlanError) as caught:
        load(plan="plan.yaml", environ={})
    includes, modes = caught.value.problems
    assert "add 'bundle: {name: NAME}'" in str(includes.hint)
    assert modes.message == "unknown key 'modes' in the plan"


# -- providers -------------------------------------------------------------------------------


def test_a_provider_option_adds_a_provider_to_a_plan_without_one(write: Write) -> None:
    write(SESSION)
    plan = load(plan="plan.yaml", provider="mock", model="m", environ={})
    assert plan.mount_plan()["providers"] == [{"module": "provider-mock", "config": {"model": "m"}}]
    assert plan.warnings == ["added provider-mock, as the plan has no provider: --provider mock"]
    with pytest.raises(PlanError, match="'mok' is unknown; did you mean 'mock'"):
        load(plan="plan.yaml", provider="mok", environ={})


def test_the_provider_option_prefers_the_settings(write: Write) -> None:
    write(
        "providers:\n  - {module: provider-mock, config: {replies: [a]}}\n"
        "  - {module: provider-mock, instance_id: other, source: ./there}\n",
        "home/settings.yaml",
    )
    write(SESSION)
    plan = load(plan="plan.yaml", provider="other", environ={})
    [provider] = plan.mount_plan()["providers"]
    assert (provider["instance_id"], Path(provider["source"]).name) == ("other", "there")
    assert "as configured in" in plan.warnings[0]
    # Without the option, settings do not apply to a plan.
    assert load(plan="plan.yaml", environ={}).mount_plan()["providers"] == []


def test_a_plan_with_a_provider_gets_no_other(write: Write) -> None:
    write(f"{SESSION}providers: [provider-mock]\n")
    with pytest.raises(PlanError, match="the plan has no provider 'openai'"):
        load(plan="plan.yaml", provider="openai", environ={})


def test_a_bundle_without_a_provider_gets_the_configured_ones(write: Write) -> None:
    write(f"bundle: {{name: b}}\n{SESSION}", "b.yaml")
    assert load(plan="b.yaml", environ={}).mount_plan()["providers"] == []
    plan = load(plan="b.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    assert [one["module"] for one in plan.mount_plan()["providers"]] == ["provider-anthropic"]
    assert plan.warnings == [
        "added provider-anthropic, as the plan has no provider: ANTHROPIC_API_KEY is set"
    ]
    write("providers: [{module: provider-mock, config: {replies: [a]}}]\n", "home/settings.yaml")
    plan = load(plan="b.yaml", environ={"ANTHROPIC_API_KEY": "k"})
    assert plan.mount_plan()["providers"] == [
        {"module": "provider-mock", "config": {"replies": ["a"]}}
    ]
    assert "configured in" in plan.warnings[0]


def test_the_namespaces_of_bundles_are_in_the_plan_and_a_plan_can_have_its_own(
    write: Write, tmp_path: Path
) -> None:
    write(bundle("kit", SESSION, "Kit."), "kit/bundle.md")
    write("bundle: {name: extra}\ntools: [tool-bash]\n", "kit/behaviors/extra.yaml")
    include = "includes: [{bundle: ./kit}, {bundle: 'kit:behaviors/extra'}]\n"
    write(
        bundle("mine", include + "namespaces: {docs: [./a, ./b], extra: ./c}\n", "Mine."),
        "bundle.md",
    )
    kit = str(tmp_path / "kit")
    assert load(plan="bundle.md", environ={}).namespaces == {
        "kit": [kit],
        "mine": [str(tmp_path)],
        "docs": [str(tmp_path / "a"), str(tmp_path / "b")],
        "extra": [str(tmp_path / "c")],
    }


def test_a_namespace_is_a_folder_or_a_fixed_version_of_one(write: Write) -> None:
    commit, digest = "a" * 40, "b" * 64
    fixed = [f"git+https://host/kit@{commit}", f"https://host/kit.zip#sha256={digest}"]
    write(f"{SESSION}namespaces: {{kit: {fixed}}}\nproviders: [provider-mock]\n", "fixed.yaml")
    plan = load(plan="fixed.yaml", environ={})
    assert plan.namespaces == {"kit": fixed}
    write(f"{SESSION}namespaces: {{kit: [git+https://host/kit@main, kit, https://host/kit.zip]}}\n")
    assert problems("plan.yaml") == [
        f"plan.yaml:2:{column}: {source!r} is not a folder or a fixed version of one"
        for source, column in (
            ("git+https://host/kit@main", 20),
            ("kit", 47),
            ("https://host/kit.zip", 52),
        )
    ]


def test_the_name_of_a_namespace_hides_no_source(write: Write) -> None:
    write(bundle("secrets", SESSION, "Mine."), "bundle.md")
    assert "REDACTED" not in load(plan="bundle.md", environ={}).to_yaml()


def test_a_bundle_whose_name_no_text_can_mention_has_no_namespace(write: Write) -> None:
    write(bundle("my kit", SESSION + "providers: [provider-mock]\n", "Mine."), "bundle.md")
    saved = load(plan="bundle.md", environ={}).to_yaml()
    write(saved, "saved.yaml")
    assert load(plan="saved.yaml", environ={}).to_yaml() == saved


def test_a_bundle_in_the_home_folder_is_not_that_of_the_projects_below(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(bundle("mine", SESSION), "bundle.md")
    write(bundle("kit", SESSION), "project/bundle.md")
    plan = load(plan="project", environ={})
    assert list(plan.namespaces) == ["kit", "mine"]
    monkeypatch.setenv("HOME", str(tmp_path))
    assert list(load(plan="project", environ={}).namespaces) == ["kit"]


def test_a_bundle_runs_in_a_folder_whose_name_no_source_can_have(
    write: Write, tmp_path: Path
) -> None:
    write(bundle("kit", f"{SESSION}providers: [provider-mock]\n"), "kit.zip/bundle.md")
    plan = load(plan="kit.zip/bundle.md", environ={})
    assert plan.namespaces == {"kit": []}
    assert plan.warnings == [
        f"files of @kit cannot be read: '{tmp_path}/kit.zip' is not a folder or a fixed version of one"
    ]
