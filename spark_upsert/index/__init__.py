"""Indexes: tables of ours that propose the keys of rows with a value in some column."""
