"""`amplifier module new`: a package to begin a module with, which works from the start.

kinds.py       what the templates of each kind are told
generate.py    templates → files
templates/     `common` for every kind, then one folder each; `package` becomes the package
"""

from __future__ import annotations
