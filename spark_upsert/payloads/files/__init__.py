"""Files of rows: Parquet, Arrow, JSON and CSV, read in batches bounded in rows and bytes."""
