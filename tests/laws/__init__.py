"""Laws that hold for all inputs, searched by Hypothesis."""
