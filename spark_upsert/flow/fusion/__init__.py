"""Which replicas share a processing element: placement, partitions, and what they cost."""
