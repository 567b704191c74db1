"""Conversions of data from outside: exact or rounded as asked, and never unchecked.

The one door (`door`) for every cast, rounding and text that becomes a number or a time. What
Arrow's kernels do not check, the door does; what does not fit is told row by row.
"""
