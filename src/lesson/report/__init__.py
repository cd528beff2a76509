"""Presentation of results: tables, figures and HTML pages."""
