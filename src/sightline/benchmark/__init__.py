"""Grids of training runs on one budget, resumable run by run, and the tables that compare them."""
