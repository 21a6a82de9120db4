"""What providers share."""
