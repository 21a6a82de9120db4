"""Engines, which run rows: `pool` has the interface, what the engines have in common, and the workers of this machine.
`ray` starts workers on a cluster, whose nodes get `package` and use `services`.
"""
