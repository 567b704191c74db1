"""The operators of a plan: each takes batches and gives batches, and is empty behind a barrier.

`operator` is the protocol; the other modules keep to it. None knows the plan or the task.
"""
