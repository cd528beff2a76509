"""Shared basics: errors, array types, random streams, validation, untrusted files, locks and plug-ins."""
