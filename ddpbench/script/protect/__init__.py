"""Keeps the user's files read-only while a script runs that must not save anything: what it writes goes to a scratch folder."""
