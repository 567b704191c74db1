"""Kernels: what decides which keys are equal, which rows match, and what makes a group.

Tables, tasks and views ask here, so that all of them mean the same by an equal key.
"""
