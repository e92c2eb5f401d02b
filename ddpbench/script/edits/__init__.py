"""Edits of a user's script: a diff that switches on what was measured."""
