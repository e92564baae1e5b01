"""Why a prompt was read though something like it had been read before. No mlx."""
