"""Scheduling: what is served next (`scheduler`), and what gives way under pressure (`governor`).

>>> from spark_upsert.scheduler.scheduler import Schedule

Nothing here knows a table or Spark, and times are handed in, in milliseconds. A program that needs
the governor alone loads no scheduler.
"""
