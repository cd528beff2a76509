"""Recordings of real federations: reading and writing them, fitting a fleet, and replaying other strategies on it."""
