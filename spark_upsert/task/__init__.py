"""Tasks: a plan of operators over Arrow batches, fed split by split and clean at every barrier.

`plan` says what is done, as values; `task` runs it.
"""
