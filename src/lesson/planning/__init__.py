"""How deadlines affect a fleet, computed without training."""
