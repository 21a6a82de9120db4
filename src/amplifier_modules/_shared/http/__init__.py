"""HTTP for providers and tools."""
