"""YAML as a tree in which every value has its location: read, address, merge, expand, edit, write."""
