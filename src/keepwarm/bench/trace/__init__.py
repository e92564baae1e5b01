"""`keepwarm bench trace`: real workloads replayed through the cache, with sizes for states."""
