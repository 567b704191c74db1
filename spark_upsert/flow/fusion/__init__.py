"""Replicas that share a processing element: placement, influence of channels, greedy joins."""
