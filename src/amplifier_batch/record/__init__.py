"""The files of a batch on disk, and their meaning after a crash.

    facts       batch.json: the plan, the input and the options
    folder      the files of a batch, and what they say
    writer      the one process that changes them
    journal     reads and appends records of any number
    progress    what the records of the journal add up to
    results     the lines of results.jsonl
    replica     copies of a row's folders on other machines
    remote      seals the record at a URL, for drivers on other machines
    merging     puts the folders of shards together

Only `writer` adds to the journal and the results; everything else can be read while a batch runs.
"""
