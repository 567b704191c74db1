"""Grouped views: what rows contribute to their groups, and what the sums of it show."""
