"""Pure values and rules: schemas, keys, hashes, precedence, merge engines, conversions and times.

`casts` is the only conversion of user data: exact, or rounded as the caller requests.
"""
