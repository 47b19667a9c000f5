"""The HTTP service: search, items and their images over galleries, and the page that uses it."""
