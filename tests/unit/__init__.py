"""Tables of cases: one rule per test."""
