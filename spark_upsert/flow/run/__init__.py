"""A fused graph at work: elements, splitters, outlets, and its passes over an engine's rows."""
