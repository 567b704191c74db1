"""The persisted state of a table: its log, its runs, and how they are read."""
