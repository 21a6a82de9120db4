"""Batch prices: the requests of all rows go to the provider together, and are answered hours later."""
