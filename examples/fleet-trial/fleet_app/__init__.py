"""A plain Flower app with NumPy and FedAvg."""
