"""Rules of the whole suite: loopback only, an isolated environment, shared fixtures."""

import signal

pytest_plugins = ["tests.support.fixtures"]


# Whoever started the suite may ignore SIGHUP (nohup does); processes under test must not inherit that.
if hasattr(signal, "SIGHUP"):
    signal.signal(signal.SIGHUP, signal.SIG_DFL)
