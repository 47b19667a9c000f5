"""Scores, relevance and ranks, exact and smooth: shared by losses and metrics."""
