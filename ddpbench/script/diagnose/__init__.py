"""Diagnoses a user's own script from inside: its loop gets other batches than its own, window by window, and never knows."""
