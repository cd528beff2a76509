"""Tests. A package, so that `python -m tests.stress` finds this folder before any installed one of that name."""
