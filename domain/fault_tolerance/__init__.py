"""Policies about failures and their remedies."""
