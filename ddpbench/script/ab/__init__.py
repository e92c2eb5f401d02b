"""The command ``ab``: launches a script as it is and with a change of its code, in turn."""
