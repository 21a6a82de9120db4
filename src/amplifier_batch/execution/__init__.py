"""Running a batch: from its options to its exit code.

setup.py      what batch.json says about a new batch, and whether it still holds
              (also at batch prices)
execute.py    runs the rows that have not ended, for a command
worker.py     the process that runs rows
node.py       what it needs on a node that does not share the disk of the batch
"""
