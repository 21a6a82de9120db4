"""The fixtures of modules' sources serve here as well."""

from __future__ import annotations

from tests.app.sources.conftest import home, repository, seed_tool

__all__ = ["home", "repository", "seed_tool"]
