"""Answers to the DataSource port."""
