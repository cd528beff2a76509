"""One run: execute it, write its folder, resume it, read it back."""
