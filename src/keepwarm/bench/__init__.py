"""`keepwarm bench`: what a user feels, measured beside mlx-lm on the same machine and weights."""
