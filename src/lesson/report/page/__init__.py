"""Pages that need nothing but a browser."""
