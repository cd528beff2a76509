"""Shared basics: errors, array types, random streams, validation, reading untrusted files, locks and plug-ins."""
