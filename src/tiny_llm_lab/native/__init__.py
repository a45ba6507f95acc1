"""Native code: compiled on first use, kept in the cache folder."""
