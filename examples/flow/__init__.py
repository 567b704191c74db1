"""A flow from one table into another: two regions of different width, one behind the other."""
