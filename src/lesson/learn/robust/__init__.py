"""Protection against bad updates: checks, robust aggregation, and corrupted uploads to test them with."""
