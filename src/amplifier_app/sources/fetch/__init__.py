"""Fetch a source into the cache: git, archives and folders, with limits for untrusted content."""
