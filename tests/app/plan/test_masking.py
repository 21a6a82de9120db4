"""What is hidden of a plan that is shown."""

import pytest

from amplifier_app.plan.masking import masked_tree
from amplifier_app.plan.tree.nodes import MapNode, plain_data
from amplifier_app.plan.tree.problems import Problems
from amplifier_app.plan.tree.yaml_reader import read_yaml

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz"


@pytest.mark.parametrize(
    "agents", [f"{{a: {{api_key: {SECRET}}}}}", f"[{{name: a, api_key: {SECRET}}}]", SECRET]
)
def test_secrets_of_agents_are_hidden_in_every_form(agents: str) -> None:
    problems = Problems()
    tree = read_yaml(f"agents: {agents}\n".encode(), "plan.yaml", problems)
    assert isinstance(tree, MapNode)
    shown = str(plain_data(masked_tree(tree)))
    assert SECRET not in shown
    assert "agents" in shown
