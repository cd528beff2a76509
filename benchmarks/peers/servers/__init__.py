"""Aggregation of single-number models, and selection of a few clients, by the server code of other implementations."""
