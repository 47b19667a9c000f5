"""Builds a label tree from names, step by step: collect, clean, embed, cluster, review, apply."""
