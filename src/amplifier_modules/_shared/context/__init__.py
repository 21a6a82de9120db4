"""What contexts share: the stored conversation, and views of it that fit a request."""
