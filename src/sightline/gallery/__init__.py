"""Find the nearest items of a collection."""
