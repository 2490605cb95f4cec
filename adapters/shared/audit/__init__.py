"""A record of what was done that shows when somebody changed it: each line names the hash of the line before."""
