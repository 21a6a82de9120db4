"""Declaring a module: its config and its tools."""
