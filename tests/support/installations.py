"""Virtual environments with the program in them, as installers leave them."""

import json
import os
import subprocess
import sysconfig
import venv
from pathlib import Path

from amplifier_app import __version__
from tests.support.cli import child_environment

_PROGRAM = (
    '#!/bin/sh\necho "${0##*/} $* ${ANTHROPIC_API_KEY-no key}" >> "$CALLS"\nexit ${CODE:-0}\n'
)
_REQUIRES = "Requires-Dist: mcp<3,>=2.0; extra == 'mcp'"


class Environment:
    """A virtual environment with the program in it, and fakes of the installers on the PATH."""

    def __init__(self, folder: Path, *, installer: str = "pip", source: object = None) -> None:
        self.prefix, self.calls, self.bin = folder / "env", folder / "calls", folder / "bin"
        venv.create(self.prefix, symlinks=True, with_pip=False)
        packages = Path(sysconfig.get_path("purelib", vars={"base": str(self.prefix)}))
        here = sysconfig.get_path("purelib")
        (packages / "all.pth").write_text(f"import site; site.addsitedir({here!r})\n")
        info = packages / f"amplifier-{__version__}.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Name: amplifier\nVersion: {__version__}\n{_REQUIRES}\n")
        (info / "INSTALLER").write_text(f"{installer}\n")
        if source is not None:
            (info / "direct_url.json").write_text(json.dumps(source))
        self.bin.mkdir()
        for name in ("uv", "pipx"):
            (self.bin / name).write_text(_PROGRAM)
            (self.bin / name).chmod(0o755)
        self.python = self.prefix / "bin" / "python"
        self.variables = child_environment(folder / "home") | {
            "CALLS": str(self.calls),
            "PATH": f"{self.bin}:{os.environ['PATH']}",
            "ANTHROPIC_API_KEY": "sk-ant-1",
        }

    def update(self, *options: str, **variables: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [self.python, "-m", "amplifier_app.cli", "update", *options],
            cwd=self.prefix,
            env=self.variables | variables,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            check=False,
        )

    def called(self) -> list[str]:
        return self.calls.read_text().splitlines() if self.calls.exists() else []
