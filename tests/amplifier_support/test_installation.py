"""The command that adds an optional part to the program, for how it was installed."""

import shlex
import subprocess
from pathlib import Path

import pytest

from amplifier_support.installation import install_command, read_requirements
from tests.support.installations import Environment

FOLDER = {"url": "file:///opt/a%20b", "dir_info": {}}
EDITABLE = {"url": "file:///opt/a%20b", "dir_info": {"editable": True}}
REPOSITORY = {
    "url": "https://example.com/a",
    "vcs_info": {"vcs": "git", "requested_revision": "v2"},
}
FILE = {"url": "https://example.com/a.whl", "archive_info": {}}
RECEIPT = """
[tool]
requirements = [
  { name = "amplifier", extras = ["local", "ray"] },
  { name = "my-module", extras = ["fast"], specifier = ">=2" },
]
"""


@pytest.mark.parametrize(
    ("installer", "mark", "receipt", "source", "words"),
    [
        ("pip", "", "", None, "{python} -m pip install 'mcp<3,>=2.0'"),
        ("pip", "", "", EDITABLE, "{python} -m pip install 'mcp<3,>=2.0'"),
        ("uv", "", "", None, "uv pip install --python {python} 'mcp<3,>=2.0'"),
        ("pip", "pipx_metadata.json", "", None, "pipx inject amplifier 'mcp<3,>=2.0'"),
        (
            "uv",
            "uv-receipt.toml",
            RECEIPT,
            None,
            "uv tool install --with 'my-module[fast]>=2' --with 'mcp<3,>=2.0' 'amplifier[local,ray]'",
        ),
        ("uv", "uv-receipt.toml", "", FOLDER, "uv tool install --with 'mcp<3,>=2.0' '/opt/a b'"),
        (
            "uv",
            "uv-receipt.toml",
            "",
            EDITABLE,
            "uv tool install --with 'mcp<3,>=2.0' -e '/opt/a b'",
        ),
        (
            "uv",
            "uv-receipt.toml",
            RECEIPT.replace("my-module", "other"),
            REPOSITORY,
            "uv tool install --with 'other[fast]>=2' --with 'mcp<3,>=2.0' "
            "'amplifier[local,ray] @ git+https://example.com/a@v2'",
        ),
        (
            "uv",
            "uv-receipt.toml",
            "",
            FILE,
            "uv tool install --with 'mcp<3,>=2.0' 'amplifier @ https://example.com/a.whl'",
        ),
    ],
)
def test_the_command_for_an_extra_is_that_of_the_installer(
    tmp_path: Path, installer: str, mark: str, receipt: str, source: object, words: str
) -> None:
    environment = Environment(tmp_path, installer=installer, source=source)
    if mark:
        (environment.prefix / mark).write_text(receipt)
    code = (
        "from amplifier_support.installation import install_command; print(install_command('mcp'))"
    )
    printed = subprocess.check_output(
        [environment.python, "-c", code], env=environment.variables, cwd=tmp_path, text=True
    )
    assert printed == words.format(python=environment.python) + "\n"


def test_every_extra_has_packages_and_an_unknown_one_names_itself() -> None:
    extras = ("local", "bedrock", "vertex", "keyring", "mcp", "otel", "parquet", "ray")
    for extra in extras:
        assert all("amplifier[" not in package for package in read_requirements(extra)), extra
    assert shlex.split(install_command("otel"))[-2:] == read_requirements("otel")
    assert read_requirements("no-such") == ["amplifier[no-such]"]
