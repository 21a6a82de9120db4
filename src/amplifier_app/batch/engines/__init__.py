"""What runs rows: `engine` is the interface, `pool` what the engines have in common, `local` and `ray` where
the workers are.
"""
