"""JSON payloads over Arrow's reader: many at once, exact, and bounded in what they may mean."""
