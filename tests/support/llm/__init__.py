"""A scripted LLM server: real HTTP on loopback, two vendors' dialects, strict about requests."""
