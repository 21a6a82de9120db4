"""The requirements of a module: read them, install them with uv, and find what is installed."""
