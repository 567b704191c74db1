"""What a reader decides, without Spark: which versions, how far a batch goes, which splits."""
