"""One plan over many inputs: rows, their sessions, and the folder that records their progress.

Read in this order: `input` (rows and their prompts), `record` (what is on disk, and what it means after a
crash), `workdirs` (where a row runs), `engines` (what runs rows), `dispatch` (which row runs next), `economy`
(answers at batch prices), `statistics` and `reports` (the results).
"""
