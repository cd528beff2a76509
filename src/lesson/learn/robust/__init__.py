"""Protection against bad updates: checks, robust aggregation, and corrupted uploads and labels to test them with."""
