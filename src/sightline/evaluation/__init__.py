"""Protocols and metrics."""
