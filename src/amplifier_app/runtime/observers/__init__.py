"""The observer protocol: how a renderer follows a session, its turns and its events."""
