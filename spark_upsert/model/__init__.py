"""What tables, keys and epochs are made of: values and rules that know no storage."""
