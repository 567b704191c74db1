"""Envelopes: how rows say what is inserted, updated and deleted."""
