"""The seven stages in which a run is made, functions from frozen values to frozen values."""
