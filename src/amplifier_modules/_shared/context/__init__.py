"""The base of the contexts: the stored conversation, and views of it that fit a request."""
