"""Tests on a real Spark, each for a contract that only Spark can break."""
