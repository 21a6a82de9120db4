"""Commands of authors."""
