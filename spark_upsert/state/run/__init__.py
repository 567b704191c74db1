"""One run: the immutable file, how it is laid out, checked and read."""
