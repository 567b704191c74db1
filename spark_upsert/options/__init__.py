"""The options that users give, read and checked."""
