"""One run: execute it, write its folder, resume it, and read it back."""
