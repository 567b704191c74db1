"""Retention: readable versions, consumers' leases, and file removal.

`leases` names the active consumers, `lag` measures their backlog, `expiry` moves the frontiers and
removes files (docs/adr/0011).
"""
