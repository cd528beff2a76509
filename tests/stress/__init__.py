"""Stress tests of the command line: kills, full disks, hostile Flower replies and hostile recordings."""
