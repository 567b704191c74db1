"""Scheduling: the next input to serve (`scheduler`), and the effects of pressure (`governor`).

Pure: times are arguments, in milliseconds. It depends on no table and not on Spark.
"""
