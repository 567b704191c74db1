"""Scheduling: who is served next, and what gives way under pressure; pure, with injected clocks."""
