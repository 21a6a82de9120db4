"""Reports of a batch: Markdown and JUnit XML (`text`), and one HTML page (`page`) with its plots."""
