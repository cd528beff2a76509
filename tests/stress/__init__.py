"""Stress tests of the command line: kills, full disks, damaged and hostile files, invalid settings."""
