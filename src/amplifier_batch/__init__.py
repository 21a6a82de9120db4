"""Batches: run a plan over many inputs, and compare the results."""
