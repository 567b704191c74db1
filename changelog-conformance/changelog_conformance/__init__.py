"""Histories of keyed changes, an oracle of what they mean, and runners of systems that apply them."""
