"""Variables of the environment inside plans."""

from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from amplifier_app.base.errors import Location
from amplifier_app.plan.tree.interpolation import interpolate
from amplifier_app.plan.tree.nodes import Scalar
from amplifier_app.plan.tree.problems import PlanError, Problems
from amplifier_app.sources.loading import load, load_plan
from amplifier_support.secret_shapes import is_secret_name
from tests.app.plan.conftest import Write

AT = Location("f", 1, 1)


def fill(text: str, environ: dict[str, str] | None = None, *, plain: bool = False) -> Any:
    problems = Problems()
    node = interpolate(Scalar(text, AT, plain=plain), environ or {}, problems)
    problems.raise_if_any()
    assert isinstance(node, Scalar)
    return node.value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("${A}", "1"),
        ("x${A}y${A}z", "x1y1z"),
        ("${A:-no}", "1"),
        ("${A:no}", "1"),
        ("${NO:-default}", "default"),
        ("${NO:default}", "default"),
        ("${NO:-}", ""),
        ("${NO:}", ""),
        ("${NO:-a:b}", "a:b"),
        ("${NO:https://h:1/x}", "https://h:1/x"),
        ("${EMPTY}", ""),
        ("${EMPTY:-default}", "default"),
        ("${NO:-${A}}", "1"),
        ("${NO:-x${EMPTY:-${A}}y}", "x1y"),
        ("${A:-${NO}}", "1"),
        ("${NO:-{}}", "{}"),
        ("$$", "$"),
        ("$${A}", "${A}"),
        ("$$$${A}", "$${A}"),
        ("$$${A}", "$1"),
        ("$A", "$A"),
        ("a $ b", "a $ b"),
        ("5$", "5$"),
    ],
)
def test_forms(text: str, value: str) -> None:
    assert fill(text, {"A": "1", "EMPTY": ""}) == value


def test_values_of_variables_are_not_expanded_again() -> None:
    assert fill("${A}", {"A": "${B} $$"}) == "${B} $$"


@pytest.mark.parametrize(
    ("text", "environ", "value"),
    [
        ("${N:-5}", {}, 5),
        ("${N:-5}", {"N": "7"}, 7),
        ("${N:-5}", {"N": "many"}, "many"),
        ("${N:-5}", {"N": "true"}, "true"),
        ("${N:-1.5}", {"N": "2"}, 2),
        ("${N:-false}", {}, False),
        ("${N:-false}", {"N": "true"}, True),
        ("${N:-text}", {"N": "5"}, "5"),
        ("${N:-}", {"N": "5"}, "5"),
        ("${N}", {"N": "5"}, "5"),
        ("${N:-5}0", {}, "50"),
    ],
)
def test_an_unquoted_value_has_the_type_of_its_default(
    text: str, environ: dict[str, str], value: Any
) -> None:
    filled = fill(text, environ, plain=True)
    assert filled == value
    assert type(filled) is type(value)


def test_a_quoted_value_stays_a_string() -> None:
    assert fill("${N:-5}", plain=False) == "5"


def test_only_defaults_that_are_used_need_their_variables() -> None:
    with pytest.raises(PlanError, match="NO is not set"):
        fill("${EMPTY:-${NO}}", {"EMPTY": ""})


@pytest.mark.parametrize("text", ["${X}", "a ${X} b", "${X:-default}"])
def test_a_variable_that_is_not_utf8_is_a_problem(text: str) -> None:
    with pytest.raises(PlanError, match="the value of X is not UTF-8"):
        fill(text, {"X": "a\udcffb"})


def test_a_skipped_entry_needs_no_variables(write: Write) -> None:
    write(
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "providers:\n"
        "  - module: provider-x\n"
        "    when: {env: X_KEY}\n"
        '    config: {api_key: "${X_KEY}"}\n'
        "  - module: provider-y\n"
    )
    assert [e["module"] for e in load_plan("plan.yaml", environ={}).data["providers"]] == [
        "provider-y"
    ]
    filled = load_plan("plan.yaml", environ={"X_KEY": "k"})
    assert filled.data["providers"][0]["config"] == {"api_key": "k"}


@given(st.text())
def test_any_text_with_its_dollars_doubled_comes_back(text: str) -> None:
    assert fill(text.replace("$", "$$")) == text


@given(st.text(alphabet="${}:-AB ", max_size=30))
def test_no_text_breaks_it(text: str) -> None:
    problems = Problems()
    node = interpolate(Scalar(text, AT), {"A": "1"}, problems)
    assert isinstance(node, Scalar)
    assert isinstance(node.value, str)


@pytest.mark.parametrize(
    ("name", "secret"),
    [
        ("ANTHROPIC_API_KEY", True),
        ("apikey", True),
        ("GITHUB_TOKEN", True),
        ("DB_PASSWORD", True),
        ("AWS_SECRET_ACCESS_KEY", True),
        ("PGPASSWORD", True),
        ("MYSQL_PWD", True),
        ("DB_PASS", True),
        ("GITHUB_PAT", True),
        ("SSH_PASSPHRASE", True),
        ("NPM_CONFIG__AUTH", True),
        ("APP_SECRETS", True),
        ("MAX_TOKENS", False),
        ("PWD", False),
        ("OLDPWD", False),
        ("SSH_AUTH_SOCK", False),
        ("GIT_AUTHOR_NAME", False),
        ("PATH", False),
        ("COMPASS_DIR", False),
        ("KEYBOARD", False),
        ("OPENAI_BASE_URL", False),
        ("monkey", False),
    ],
)
def test_names_of_secrets(name: str, secret: bool) -> None:
    assert is_secret_name(name) is secret


def test_strings_with_unset_variables_can_be_kept_as_written(write: Write) -> None:
    text = (
        "session: {orchestrator: loop-basic, context: context-simple}\n"
        "instruction: Ask ${WHO} about ${WHAT:-it} for $$5\n"
        "tools:\n  - module: t\n    source: ${PLACE}\n    config: {api_key: 'x${KEY}', n: 1}\n"
    )
    plan = load(plan=write(text), environ={}, keep_unset=True)
    assert [(one.name, one.at.line) for one in plan.unset] == [
        ("WHO", 2),
        ("PLACE", 5),
        ("KEY", 6),
    ]
    assert plan.data["instruction"] == "Ask ${WHO} about ${WHAT:-it} for $$5"
    assert plan.data["tools"][0]["source"] == "${PLACE}"
    again = yaml.safe_load(plan.to_yaml())
    assert again["instruction"] == "Ask ${WHO} about ${WHAT:-it} for $$5"
    assert again["tools"][0]["config"] == {"api_key": "${KEY}", "n": 1}
    whole = load(plan=write(text), environ={"WHO": "me", "PLACE": "./t", "KEY": "k"}).data
    assert whole["instruction"] == "Ask me about it for $5"
