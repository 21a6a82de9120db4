"""Statistics of results: `summary` in a line, `pass_rates` with intervals, `comparison` of two
batches.
"""
