"""Git as a helper: found on the safe PATH, and with no configuration but what the caller asks for.

Git's own environment variables are ignored except those asked for. Keys are not passed on, except to
the user's credential helpers. The configuration of a repository applies only if the caller points git
at that repository.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable

from amplifier_support.environment import without_model_keys, without_secrets
from amplifier_support.programs import search_path

_NO_PROGRAMS = (
    ("core.hooksPath", os.devnull),
    ("core.fsmonitor", "false"),
    ("core.askPass", ""),
    ("submodule.recurse", "false"),
    ("gc.auto", "0"),
    ("maintenance.auto", "false"),
)
_NO_HELPERS = (("credential.helper", ""),)
_USER_CONFIG = ("GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM", "GIT_CONFIG_NOSYSTEM")


def git_environment(
    config: Iterable[tuple[str, str]] = (),
    *,
    folder: str | None = None,
    keep: Collection[str] = (),
    user_config: bool = False,
    credential_helpers: bool = False,
    protocols: Collection[str] = (),
) -> dict[str, str]:
    """The environment to run git in.

    Args:
        config: Settings, in addition to those that keep git from starting programs; a name may
            occur several times.
        folder: The folder git works on; programs in it are not used.
        keep: Variables of git (`GIT_*`) that stay as the user has set them.
        user_config: Also read the configuration of the user and the system.
        credential_helpers: Run the user's credential helpers. They may read a token from a variable,
            so only keys of model providers are withheld.
        protocols: Ways to reach other repositories, such as `https`, whatever the configuration says.
    """
    kept = (*keep, *(_USER_CONFIG if user_config else ()))
    passed_on = (
        without_model_keys(os.environ)
        if credential_helpers
        else without_secrets(os.environ, passthrough=kept)
    )
    env = {
        name: value
        for name, value in passed_on.items()
        if name in kept or not name.startswith(("GIT_", "SSH_ASKPASS"))
    }
    env.update(
        PATH=search_path(folder),
        LC_ALL="C",
        GIT_PAGER="cat",
        GIT_TERMINAL_PROMPT="0",
        GIT_ALLOW_PROTOCOL=":".join(protocols) or "none",
        SSH_ASKPASS_REQUIRE="never",
    )
    if not protocols:
        # A missing object would be fetched by a program that the repository names.
        env["GIT_NO_LAZY_FETCH"] = "1"
    if not user_config:
        env.update(GIT_CONFIG_NOSYSTEM="1", GIT_CONFIG_GLOBAL=os.devnull, GIT_ATTR_NOSYSTEM="1")
    settings = [*_NO_PROGRAMS, *(() if credential_helpers else _NO_HELPERS), *config]
    env["GIT_CONFIG_COUNT"] = str(len(settings))
    for number, (key, value) in enumerate(settings):
        env[f"GIT_CONFIG_KEY_{number}"] = key
        env[f"GIT_CONFIG_VALUE_{number}"] = value
    return env
