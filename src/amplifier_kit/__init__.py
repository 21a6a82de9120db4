"""Tools for authors: validate modules, start new ones, test plans and policies."""
