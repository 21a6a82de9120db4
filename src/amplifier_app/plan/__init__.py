"""Plans and profiles: YAML files → one merged plan that knows the origin of each value."""
