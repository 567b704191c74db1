"""Pure values and rules: schemas, keys, hashes, precedence, merge engines, conversions and times.

Every cast of data from outside goes through `casts`: exact or rounded as the caller says, and
checked, row by row, where Arrow's kernels do not check.
"""
