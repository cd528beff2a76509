"""Figures, tables and README of a contest: a comparison of tuned strategies."""
