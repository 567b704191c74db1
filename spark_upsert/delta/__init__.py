"""Delta mirrors: a Delta table showing a table version and following the table (docs/adr/0084).

Each run has a Parquet data file (a *twin*) with the same rows in the same order; a deletion vector
marks superseded rows. `publish` brings a mirror to the newest version.
"""
