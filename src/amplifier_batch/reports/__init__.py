"""Reports of a batch: Markdown, JUnit XML and CSV (`text`), and one HTML page (`page`) with its plots."""
