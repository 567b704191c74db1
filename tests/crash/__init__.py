"""Crashes and faults at every step."""
