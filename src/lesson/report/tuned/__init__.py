"""Figures, tables and README of a tuned comparison."""
