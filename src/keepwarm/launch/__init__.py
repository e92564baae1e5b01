"""Coding agents, set up for a server of ours and started. Nothing of a user's own configuration is
changed: what a client has to know goes to that one process."""
