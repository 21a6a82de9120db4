"""The certificates that the environment names."""

from __future__ import annotations

import os


def certificates_of_environment() -> tuple[str | None, ...]:
    """Return the variables that a TLS context depends on, to know when one that is kept is out of
    date.
    """
    return tuple(map(os.environ.get, ("SSL_CERT_FILE", "SSL_CERT_DIR")))
