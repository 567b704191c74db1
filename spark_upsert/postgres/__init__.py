"""Changes of a PostgreSQL database, by logical decoding (``pgoutput``)."""
