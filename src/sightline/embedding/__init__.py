"""Vectors with their ids, labels and the fingerprint of the encoder that made them."""
