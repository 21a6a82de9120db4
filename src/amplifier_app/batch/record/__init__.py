"""What a batch keeps on disk, and what it means after a crash.

folder      the files of a batch, and their one writer
journal     reads and appends records of any number
progress    what the records of the journal add up to
results     the lines of results.jsonl
merging     puts the folders of shards together
"""
