"""Names of the real library that belong to training, which is not supported."""
