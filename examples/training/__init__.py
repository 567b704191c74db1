"""Train something small on the rows of a table, be ended anywhere, and go on exactly."""
