"""`amplifier module new`: the package of a new, working module.

command.py     the values of each kind for its templates, and templates → files
templates/     `common` for every kind, then one folder each; `package` becomes the package
"""

from __future__ import annotations
