"""The version of wflow."""

__version__ = "0.2.0"
