"""The sandbox for the commands that an agent starts: a policy, and how it is enforced."""
