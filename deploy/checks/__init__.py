"""The checks of deploy/check.py."""
