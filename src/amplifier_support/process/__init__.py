"""Commands that are supervised: nothing they start outlives its time."""
