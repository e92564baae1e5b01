"""`keepwarm doctor`: what this machine and a model give, found by looking and by trying."""
