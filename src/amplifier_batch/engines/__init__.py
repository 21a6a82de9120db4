"""Engines, which run rows: `engine` is the interface, `pool` is what the engines have in common, `local` and `ray` start
the workers.
"""
