"""Rules of the whole suite: loopback only, an isolated environment, shared fixtures."""

import signal

pytest_plugins = ["tests.support.fixtures"]


# The process that started the suite may ignore signals: nohup does SIGHUP, a shell in its background SIGINT.
# Processes under test must not inherit that.
signal.signal(signal.SIGINT, signal.default_int_handler)
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
