"""The certificates that the environment names."""

from __future__ import annotations

import os


def certificates_of_environment() -> tuple[str | None, ...]:
    """What a TLS context depends on, so that one which is kept is known to be out of date."""
    return tuple(map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
