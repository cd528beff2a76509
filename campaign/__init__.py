"""Trouble on purpose: kills, full disks, damaged and hostile files, odd settings, through the command line."""
