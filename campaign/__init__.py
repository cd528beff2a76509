"""Fault injection through the command line: kills, full disks, damaged and hostile files, invalid settings."""
