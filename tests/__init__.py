"""The specification of upsertflow, in tests."""
