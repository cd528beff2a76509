"""Presentation of results: tables, figures and HTML pages. Nothing here trains or simulates."""
