"""The search for better settings, trial by trial."""
