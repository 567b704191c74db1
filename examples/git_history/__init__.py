"""The history of a git repository as a keyed stream, replayed through Spark and proven."""
