"""The version of wflow."""

__version__ = "0.1.0"
