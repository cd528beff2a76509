"""Figures and tables of tuned comparisons."""
