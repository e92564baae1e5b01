"""Models that come with keepwarm, and how they are made."""
