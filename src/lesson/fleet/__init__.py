"""The clients and their latency: population, latency (Eq. 3–6), tiers (Eq. 7) and files of measured times."""
