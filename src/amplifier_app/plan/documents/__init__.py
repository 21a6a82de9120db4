"""The documents of a plan: where they are found, how each is read, and what they include."""
