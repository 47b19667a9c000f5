"""Backbone, pooling and head: together an encoder, saved as one folder."""
