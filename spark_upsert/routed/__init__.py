"""One stream into many tables: each row goes to the table that its own values name."""
