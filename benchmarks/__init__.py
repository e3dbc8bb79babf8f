"""Benchmarks: each an executable of its own; what they share is in modules here."""
