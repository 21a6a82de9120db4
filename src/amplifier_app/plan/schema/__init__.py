"""The contents of a plan: the rules of its values, the config schemas of modules, and both as one
JSON Schema.
"""
