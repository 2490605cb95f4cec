"""The version of Holdfast, which the distribution takes from here."""

__version__ = "0.1.0"
