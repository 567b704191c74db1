"""Readers of Delta that share no code with us, each a program in an environment of its own."""
