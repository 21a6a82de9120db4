"""`amplifier module validate`: check a module against the contract of its kind.

    command.py     checks the folder, then runs the module's checks through
    isolation.py   which starts a separate process, supervised by
                   amplifier_support.process.limited_program,
    child.py       which imports the module and reports as it goes
    contract.py    import, mount, protocol, schemas, cleanup     ┐ in the
    behaviour.py   the behaviour suite of its kind               ┘ child

None of this is a sandbox: a module that is checked runs with the rights of the user.
"""

from __future__ import annotations
