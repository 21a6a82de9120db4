"""`amplifier module validate`: is this a module, and does it keep the contract of its kind?

    validate.py    looks at the folder, then has the module tried out
    isolation.py   runs that in a process of its own, through
    warden.py      which lets nothing that the module starts outlive it, and
    child.py       which imports the module, and reports as it goes
    contract.py    import, mount, protocol, schemas, cleanup     ┐ in the
    behaviour.py   the behaviour suite of its kind               ┘ child

None of it is a sandbox: a module that is checked runs with the rights of whoever checks it.
"""

from __future__ import annotations
