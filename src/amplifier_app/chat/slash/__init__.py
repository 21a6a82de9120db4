"""The slash commands of the chat: a registry, and one function per command."""
