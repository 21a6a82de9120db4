"""The input of a batch: rows from files (`rows`, `parquet`) and the prompt of each (`prompts`)."""
