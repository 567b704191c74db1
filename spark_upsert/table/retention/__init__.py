"""Retention: how long the past stays readable, which consumers hold it, and what is removed.

Leases name the consumers that still read, a policy chooses a frontier, and a worker commits it and
removes files.
"""
