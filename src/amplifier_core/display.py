"""The published name of the protocol for messages, see `approval`."""

from amplifier_core.approval import DisplaySystem as DisplaySystem
