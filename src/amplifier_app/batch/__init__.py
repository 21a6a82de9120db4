"""One plan over many inputs: rows, their sessions, and the folder that records their progress.

Read in this order: `rows` (the inputs), `prompts` (a row becomes a prompt), `folder` (what is on disk, and
what it means after a crash), `engines` (what runs rows), `dispatch` (which row runs next),
`reports` (the results).
"""
