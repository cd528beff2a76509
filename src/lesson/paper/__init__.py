"""Reproduction of the paper: its figures, tables and claims, and the runs they need."""
