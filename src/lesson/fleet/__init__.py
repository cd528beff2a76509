"""Clients and how long they take: population, latency (Eq. 3–6), tiers (Eq. 7), files of measured latencies."""
