"""Figures and tables of runs, comparisons and sweeps."""
