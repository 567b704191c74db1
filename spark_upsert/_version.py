"""The distribution's version. The build reads this file without importing the package."""

__version__ = "0.1.0"
