"""Followers: programs that write a database's changes into the tables below a root."""
