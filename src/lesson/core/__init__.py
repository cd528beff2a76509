"""Shared basics: errors, array types, random streams, validation, state, files, locks and plug-ins."""
