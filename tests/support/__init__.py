"""Small real implementations that tests run against: stores, disks, models, tables."""
