"""The servers that tests run against: real ones, on loopback only, gone when the test is.

One `Server` is a container where a Docker engine answers, and the same program as a process of
this machine where none does; its address, its files and what a test may do to it are the same.
What a process needs is installed without root, once, below ``.servers`` or with the test group
of ``pyproject.toml``; a machine that lacks what installs it fails the test with a sentence that
names it.
"""
