"""What a deadline does to a fleet, without training."""
