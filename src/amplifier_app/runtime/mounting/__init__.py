"""Mount the modules of a plan, and report those that cannot be mounted."""
