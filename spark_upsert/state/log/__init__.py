"""The log: what a version says, and the order in which versions follow each other."""
