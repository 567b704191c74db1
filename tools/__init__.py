"""Programs that work on the checkout; never installed."""
