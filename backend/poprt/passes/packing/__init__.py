"""Pass that packs samples of different lengths into one, and the rules it follows."""
