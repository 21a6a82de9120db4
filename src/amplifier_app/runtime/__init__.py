"""A resolved plan becomes an open session, and what happens in it is reported to observers."""
