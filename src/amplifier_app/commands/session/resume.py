"""`amplifier session resume`: another name of `amplifier resume`."""

from amplifier_app.commands.resume.command import app

__all__ = ["app"]
