"""Running a batch: from its options to its exit code.

setup.py      what batch.json says about a new batch, and whether it still holds
execute.py    runs the rows that have not ended, for a command
economy.py    gives them answers at batch prices
worker.py     the process that runs rows
library.py    runs a batch for `amplifier_app.api`
"""
