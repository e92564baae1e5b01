"""`keepwarm chat`: a conversation in the terminal, with the engine in the same process."""
