"""Optional modules, for plans that name them."""
