"""Figures, tables and README of a contest, that is a comparison of tuned strategies."""
