"""sprout: the small model that comes with keepwarm. Its data, its training, its scores."""
