"""Checks of this machine for the settings of a run, before the run begins."""
